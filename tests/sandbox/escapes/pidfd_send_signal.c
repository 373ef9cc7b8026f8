// Kills another process through a pidfd.
#include "attempt.h"

int main(void) {
    int process = (int)step(syscall(SYS_pidfd_open, number("VICTIM"), 0), "pidfd_open");
    step(syscall(SYS_pidfd_send_signal, process, SIGKILL, NULL, 0), "pidfd_send_signal");
    escaped("pidfd_send_signal");
}
