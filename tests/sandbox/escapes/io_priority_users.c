// Lowers the I/O priority of all processes of its user.
#include "attempt.h"

int main(void) {
    if (geteuid() == 0) impossible("it would slow the whole machine down");
    // The class "best effort", a bit lower than usual.
    long lower = 2 << 13 | 5;
    step(syscall(SYS_ioprio_set, 3, geteuid(), lower), "ioprio_set");
    if (syscall(SYS_ioprio_get, 1, number("VICTIM")) == lower) escaped("ioprio_set");
    blocked("other processes are not visible");
}
