// Reads a denied file through a symlink.
#include "attempt.h"

int main(void) {
    prepare(symlink("denied/secret", "alias"), "symlink in the workspace");
    read_secret(open("alias", O_RDONLY), "open the symlink");
}
