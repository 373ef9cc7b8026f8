// Stops using a file as swap. (It is missing: harmless.)
#include "attempt.h"

int main(void) { judge_harmless(syscall(SYS_swapoff, "/nonexistent"), ENOENT, ENOENT, "swapoff"); }
