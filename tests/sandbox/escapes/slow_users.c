// Lowers the CPU priority of all processes of its user.
#include <sys/resource.h>

#include "attempt.h"

int main(void) {
    if (geteuid() == 0) impossible("it would slow the whole machine down");
    step(setpriority(PRIO_USER, 0, 1), "setpriority");
    if (getpriority(PRIO_PROCESS, (id_t)number("VICTIM")) == 1) escaped("setpriority");
    blocked("other processes are not visible");
}
