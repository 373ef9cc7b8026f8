// Kills another process by the oldest call that names a thread.
#include "attempt.h"

int main(void) {
    step(syscall(SYS_tkill, number("VICTIM"), SIGKILL), "tkill");
    escaped("tkill");
}
