// Kills another process of the same user.
#include "attempt.h"

int main(void) {
    step(kill((pid_t)number("VICTIM"), SIGKILL), "kill");
    escaped("kill");
}
