// Exchanges `.git` with a prepared directory.
#include "attempt.h"

int main(void) {
    step(renameat2(AT_FDCWD, "directory", AT_FDCWD, ".git", RENAME_EXCHANGE), "renameat2");
    escaped("renameat2");
}
