// Exchanges a writable directory above the workspace with a prepared one.
#include "attempt.h"

int main(void) {
    char *upper = path("%s", variable("UPPER")), *prepared = path("%s-prepared", upper);
    mkdir(prepared, 0700);
    mkdir(path("%s/workspace", prepared), 0700);
    step(mkdir(path("%s/workspace/.git", prepared), 0700), "mkdir");
    step(renameat2(AT_FDCWD, prepared, AT_FDCWD, upper, RENAME_EXCHANGE), "renameat2");
    escaped("renameat2");
}
