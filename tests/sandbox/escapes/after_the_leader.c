// Creates a file outside after the process that was started has exited.
#include "attempt.h"

int main(void) {
    pid_t leader = getpid();
    if (fork() != 0) _exit(SAID_ELSEWHERE);
    while (getppid() == leader) sched_yield();
    create(outside("new"));
}
