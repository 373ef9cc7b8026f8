// Creates a hard link outside to a file of the workspace.
#include "attempt.h"

int main(void) {
    step(link("file", outside("new")), "link");
    escaped("link");
}
