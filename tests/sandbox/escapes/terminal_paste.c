// Pastes the selection of the console. (This is another terminal, which does not know the request: harmless.)
#include <sys/ioctl.h>

#include "attempt.h"

int main(void) {
    char request = 3;
    judge_harmless(ioctl(0, TIOCLINUX, &request), ENOTTY, EINVAL, "TIOCLINUX");
}
