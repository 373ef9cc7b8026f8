// Types into its terminal, for the shell that reads from it later.
#include <sys/ioctl.h>

#include "attempt.h"

int main(void) {
    if (ioctl(0, TIOCSTI, "x") < 0) {
        // Newer kernels have a setting that forbids it to everybody; without a sandbox they say EIO.
        if (errno == EIO) impossible("TIOCSTI");
        blocked("TIOCSTI");
    }
    escaped("TIOCSTI");
}
