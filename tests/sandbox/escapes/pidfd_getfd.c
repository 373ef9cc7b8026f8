// Copies a descriptor of another process.
#include "attempt.h"

int main(void) {
    int process = (int)step(syscall(SYS_pidfd_open, number("VICTIM"), 0), "pidfd_open");
    write_through(syscall(SYS_pidfd_getfd, process, number("VICTIM_DESCRIPTOR"), 0), "pidfd_getfd");
}
