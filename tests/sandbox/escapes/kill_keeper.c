// Signals its keeper.
#include "attempt.h"

int main(void) {
    // In the sandbox's PID namespace the keeper's pid is 0, so it cannot be addressed.
    if (getppid() <= 1) blocked("the parent is not visible");
    step(kill(getppid(), 0), "kill");
    escaped("kill");
}
