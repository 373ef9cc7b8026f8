// Lowers the CPU priority of another process.
#include <sys/resource.h>

#include "attempt.h"

int main(void) {
    step(setpriority(PRIO_PROCESS, (id_t)number("VICTIM"), 19), "setpriority");
    escaped("setpriority");
}
