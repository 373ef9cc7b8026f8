// Signals its keeper.
#include "attempt.h"

int main(void) {
    // In a PID namespace the keeper cannot be addressed: the parent's pid is 0, or 1 if bubblewrap is the parent.
    if (getppid() <= 1) blocked("the parent is not visible");
    step(kill(getppid(), 0), "kill");
    escaped("kill");
}
