// Changes a resource limit of its keeper (to its current value: harmless).
#include <sys/resource.h>

#include "attempt.h"

int main(void) {
    struct rlimit limit;
    if (getppid() <= 1) blocked("the parent is not visible");
    step(prlimit(getppid(), RLIMIT_CORE, NULL, &limit), "prlimit");
    step(prlimit(getppid(), RLIMIT_CORE, &limit, NULL), "prlimit");
    escaped("prlimit");
}
