// Gives a file of the workspace a second name outside.
#include "attempt.h"

int main(void) {
    step(link("file", outside("new")), "link");
    escaped("link");
}
