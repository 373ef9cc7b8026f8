// Signals the spawner of the server.
#include "attempt.h"

int main(void) {
    step(kill((pid_t)number("SPAWNER"), 0), "kill");
    escaped("kill");
}
