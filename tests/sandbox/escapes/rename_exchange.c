// Exchanges a file of the workspace with one outside.
#include "attempt.h"

int main(void) {
    step(renameat2(AT_FDCWD, "file", AT_FDCWD, outside("file"), RENAME_EXCHANGE), "renameat2");
    escaped("renameat2");
}
