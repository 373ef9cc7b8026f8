// Replaces the kernel. (The arguments are invalid: harmless.)
#include "attempt.h"

int main(void) { judge_harmless(syscall(SYS_kexec_load, 0, 17, NULL, -1L), EINVAL, EINVAL, "kexec_load"); }
