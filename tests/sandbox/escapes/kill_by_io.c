// Makes the kernel send a signal to another process when a pipe becomes readable.
#include <poll.h>

#include "attempt.h"

int main(void) {
    int ends[2], process = (int)step(syscall(SYS_pidfd_open, number("VICTIM"), 0), "pidfd_open");
    if (pipe(ends) < 0) impossible("pipe");
    step(fcntl(ends[0], F_SETOWN, (pid_t)number("VICTIM")), "F_SETOWN");
    step(fcntl(ends[0], F_SETSIG, SIGKILL), "F_SETSIG");
    step(fcntl(ends[0], F_SETFL, O_ASYNC), "O_ASYNC");
    step(write(ends[1], "x", 1), "write");
    // The write has sent the signal; wait for the process to end.
    struct pollfd ended = {.fd = process, .events = POLLIN};
    if (poll(&ended, 1, 2000) == 1) escaped("SIGIO");
    blocked("the process is alive");
}
