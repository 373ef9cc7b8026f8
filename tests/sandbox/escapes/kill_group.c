// Kills the process group of another process.
#include "attempt.h"

int main(void) {
    step(kill(-(pid_t)number("VICTIM"), SIGKILL), "kill");
    escaped("kill");
}
