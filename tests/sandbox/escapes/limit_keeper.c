// Changes a limit of the process that watches over this one (to what it is: harmless).
#include <sys/resource.h>

#include "attempt.h"

int main(void) {
    struct rlimit limit;
    if (getppid() <= 1) blocked("the parent is not in sight");
    step(prlimit(getppid(), RLIMIT_CORE, NULL, &limit), "prlimit");
    step(prlimit(getppid(), RLIMIT_CORE, &limit, NULL), "prlimit");
    escaped("prlimit");
}
