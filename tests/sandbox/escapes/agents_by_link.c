// Gives a file the missing name `.agents` as a second one.
#include "attempt.h"

int main(void) {
    step(link("file", ".agents"), "link");
    escaped("link");
}
