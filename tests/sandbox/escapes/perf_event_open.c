// Opens a performance counter for itself.
#include <linux/perf_event.h>

#include "attempt.h"

int main(void) {
    struct perf_event_attr event = {.type = PERF_TYPE_SOFTWARE,
                                    .size = sizeof event,
                                    .config = PERF_COUNT_SW_TASK_CLOCK,
                                    .exclude_kernel = 1,
                                    .exclude_hv = 1};
    step(syscall(SYS_perf_event_open, &event, 0, -1, -1, 0), "perf_event_open");
    escaped("perf_event_open");
}
