// Changes the scheduling of another process with the newest call for it.
#include "attempt.h"

int main(void) {
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attributes = {.size = 48, .nice = 19};
    step(syscall(SYS_sched_setattr, number("VICTIM"), &attributes, 0), "sched_setattr");
    escaped("sched_setattr");
}
