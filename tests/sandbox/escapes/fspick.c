// Picks a mounted file system to reconfigure it.
#include "attempt.h"

int main(void) {
    step(syscall(SYS_fspick, AT_FDCWD, "/proc", 0), "fspick");
    escaped("fspick");
}
