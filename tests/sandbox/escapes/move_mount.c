// Moves a mount with the new mount API. (Both paths are missing: harmless.)
#include "attempt.h"

int main(void) {
    long result = syscall(SYS_move_mount, AT_FDCWD, "/nonexistent", AT_FDCWD, "/nonexistent", 0);
    judge_harmless(result, ENOENT, ENOENT, "move_mount");
}
