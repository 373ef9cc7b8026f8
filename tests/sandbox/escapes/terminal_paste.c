// Pastes the console selection. (Its terminal is not a console and lacks that request: harmless.)
#include <sys/ioctl.h>

#include "attempt.h"

int main(void) {
    char request = 3;
    judge_harmless(ioctl(0, TIOCLINUX, &request), ENOTTY, EINVAL, "TIOCLINUX");
}
