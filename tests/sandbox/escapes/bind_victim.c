// Binds another process to one CPU.
#include "attempt.h"

int main(void) {
    cpu_set_t processors;
    sched_getaffinity(0, sizeof processors, &processors);
    step(sched_setaffinity((pid_t)number("VICTIM"), sizeof processors, &processors), "sched_setaffinity");
    escaped("sched_setaffinity");
}
