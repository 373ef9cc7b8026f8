// Creates a file outside through a symlink in the workspace to its directory.
#include "attempt.h"

int main(void) {
    prepare(symlink(variable("OUTSIDE"), "alias"), "symlink in the workspace");
    create("alias/new");
}
