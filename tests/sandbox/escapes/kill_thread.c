// Kills another process through its main thread.
#include "attempt.h"

int main(void) {
    step(syscall(SYS_tgkill, number("VICTIM"), number("VICTIM"), SIGKILL), "tgkill");
    escaped("tgkill");
}
