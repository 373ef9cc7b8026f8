// Sends another process a signal with a value.
#include "attempt.h"

int main(void) {
    step(sigqueue((pid_t)number("VICTIM"), SIGKILL, (union sigval){0}), "sigqueue");
    escaped("sigqueue");
}
