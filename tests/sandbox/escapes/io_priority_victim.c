// Gives another process the idle I/O priority.
#include "attempt.h"

int main(void) {
    // The class "idle".
    step(syscall(SYS_ioprio_set, 1, number("VICTIM"), 3 << 13), "ioprio_set");
    escaped("ioprio_set");
}
