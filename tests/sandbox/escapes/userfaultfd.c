// Handles its own page faults, which makes races in the kernel easy to win.
#include "attempt.h"

int main(void) {
    // 1: only faults in user space, which any process may handle.
    step(syscall(SYS_userfaultfd, O_CLOEXEC | 1), "userfaultfd");
    escaped("userfaultfd");
}
