// Sets the CPU priority of another process's group (to its current value).
#include <sys/resource.h>

#include "attempt.h"

int main(void) {
    pid_t process = (pid_t)number("VICTIM");
    pid_t group = (pid_t)step(getpgid(process), "getpgid");
    step(setpriority(PRIO_PGRP, (id_t)group, getpriority(PRIO_PROCESS, (id_t)process)), "setpriority");
    escaped("setpriority");
}
