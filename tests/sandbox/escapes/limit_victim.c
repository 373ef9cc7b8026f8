// Limits the CPU time of another process, so that the kernel kills it.
#include <sys/resource.h>

#include "attempt.h"

int main(void) {
    struct rlimit limit = {1, 1};
    step(prlimit((pid_t)number("VICTIM"), RLIMIT_CPU, &limit, NULL), "prlimit");
    escaped("prlimit");
}
