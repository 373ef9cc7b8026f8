// Traces its own child, whose system calls it could change after the filter has checked them.
#include <sys/ptrace.h>

#include "attempt.h"

int main(void) {
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    long result = ptrace(PTRACE_SEIZE, child, NULL, NULL);
    int error = errno;
    kill(child, SIGKILL);
    errno = error;
    step(result, "ptrace");
    escaped("ptrace");
}
