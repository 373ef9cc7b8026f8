// Signals the process of the server that starts others.
#include "attempt.h"

int main(void) {
    step(kill((pid_t)number("SPAWNER"), 0), "kill");
    escaped("kill");
}
