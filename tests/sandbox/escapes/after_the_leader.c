// Creates a file outside after the started process has exited.
#include "attempt.h"

int main(void) {
    pid_t leader = getpid();
    if (fork() != 0) _exit(SAID_ELSEWHERE);
    while (getppid() == leader) sched_yield();
    create(outside("new"));
}
