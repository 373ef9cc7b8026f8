// Pastes the console selection. (This is another kind of terminal, without that request: harmless.)
#include <sys/ioctl.h>

#include "attempt.h"

int main(void) {
    char request = 3;
    judge_harmless(ioctl(0, TIOCLINUX, &request), ENOTTY, EINVAL, "TIOCLINUX");
}
