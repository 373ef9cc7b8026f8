// Reboots the machine. (The magic numbers are wrong: harmless.)
#include "attempt.h"

int main(void) { judge_harmless(syscall(SYS_reboot, 1, 2, 3, NULL), EINVAL, EINVAL, "reboot"); }
