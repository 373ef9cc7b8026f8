// Kills another process with the oldest call that addresses a thread.
#include "attempt.h"

int main(void) {
    step(syscall(SYS_tkill, number("VICTIM"), SIGKILL), "tkill");
    escaped("tkill");
}
