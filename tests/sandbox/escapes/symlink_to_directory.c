// Creates a file outside through a symlink to the directory.
#include "attempt.h"

int main(void) {
    prepare(symlink(variable("OUTSIDE"), "alias"), "symlink in the workspace");
    create("alias/new");
}
