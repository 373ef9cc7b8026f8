// Signals the process that watches over this one.
#include "attempt.h"

int main(void) {
    // In a PID namespace whose first process it is not, its number is 0, and nobody can name it.
    if (getppid() <= 1) blocked("the parent is not in sight");
    step(kill(getppid(), 0), "kill");
    escaped("kill");
}
