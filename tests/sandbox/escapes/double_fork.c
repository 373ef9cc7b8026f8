// Creates a file outside from an orphaned process in its own session.
#include "attempt.h"

int main(void) {
    int ends[2];
    char code = BLOCKED;
    if (pipe(ends) < 0) impossible("pipe");
    if (fork() == 0) {
        setsid();
        if (fork() != 0) _exit(0);
        while (getppid() == getpgrp()) sched_yield();
        int file = open(outside("new"), O_WRONLY | O_CREAT, 0600);
        code = file >= 0 ? ESCAPED : BLOCKED;
        _exit(write(ends[1], &code, 1) == 1 ? 0 : 1);
    }
    close(ends[1]);
    wait(NULL);
    if (read(ends[0], &code, 1) != 1) impossible("no message from the grandchild");
    _exit(code);
}
