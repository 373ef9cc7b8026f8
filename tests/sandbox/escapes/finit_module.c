// Loads a kernel module from a file. (The descriptor is invalid: harmless.)
#include "attempt.h"

int main(void) { judge_harmless(syscall(SYS_finit_module, -1, "", 0), EBADF, EBADF, "finit_module"); }
