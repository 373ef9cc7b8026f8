// Handles page faults itself, which makes races in the kernel easy to win.
#include "attempt.h"

int main(void) {
    // 1: only faults of user space, which everybody may handle.
    step(syscall(SYS_userfaultfd, O_CLOEXEC | 1), "userfaultfd");
    escaped("userfaultfd");
}
