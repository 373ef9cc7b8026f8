// Makes a mount writable with the new mount API. (The path is missing: harmless.)
#include "attempt.h"

int main(void) {
    uint64_t attributes[4] = {0, 1, 0, 0};
    long result = syscall(SYS_mount_setattr, AT_FDCWD, "/nonexistent", 0, attributes, sizeof attributes);
    judge_harmless(result, ENOENT, ENOENT, "mount_setattr");
}
