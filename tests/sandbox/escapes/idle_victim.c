// Makes another process run only when the CPU is idle.
#include "attempt.h"

int main(void) {
    struct sched_param none = {0};
    step(sched_setscheduler((pid_t)number("VICTIM"), SCHED_IDLE, &none), "sched_setscheduler");
    escaped("sched_setscheduler");
}
