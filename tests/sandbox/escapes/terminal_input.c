// Injects input into its terminal, for the shell that reads from it later.
#include <sys/ioctl.h>

#include "attempt.h"

int main(void) {
    if (ioctl(0, TIOCSTI, "x") < 0) {
        // Newer kernels can disable the request for all processes; it then fails with EIO even without a sandbox.
        if (errno == EIO) impossible("TIOCSTI");
        blocked("TIOCSTI");
    }
    escaped("TIOCSTI");
}
