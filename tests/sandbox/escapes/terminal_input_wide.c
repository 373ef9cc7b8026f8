// Injects input into its terminal, with garbage in the half of the request that the kernel ignores.
#include <sys/ioctl.h>

#include "attempt.h"

int main(void) {
    if (syscall(SYS_ioctl, 0L, 0xdeadbeef00000000UL | TIOCSTI, "x") < 0) {
        if (errno == EIO) impossible("TIOCSTI");
        blocked("TIOCSTI");
    }
    escaped("TIOCSTI");
}
