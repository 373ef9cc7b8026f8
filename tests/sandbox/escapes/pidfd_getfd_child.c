// Copies a descriptor of its own child.
#include "attempt.h"

int main(void) {
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    int process = (int)step(syscall(SYS_pidfd_open, child, 0), "pidfd_open");
    long result = syscall(SYS_pidfd_getfd, process, 1, 0);
    int error = errno;
    kill(child, SIGKILL);
    errno = error;
    step(result, "pidfd_getfd");
    escaped("pidfd_getfd");
}
