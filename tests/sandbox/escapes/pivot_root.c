// Changes the root mount. (Both directories are missing: harmless.)
#include "attempt.h"

int main(void) {
    judge_harmless(syscall(SYS_pivot_root, "/nonexistent", "/nonexistent"), ENOENT, ENOENT, "pivot_root");
}
