// Writes to a file outside through a symlink in the workspace.
#include "attempt.h"

int main(void) {
    prepare(symlink(outside("file"), "alias"), "symlink in the workspace");
    write_through(open("alias", O_WRONLY), "open the symlink");
}
