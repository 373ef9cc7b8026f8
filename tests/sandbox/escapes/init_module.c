// Loads a kernel module from memory. (The memory contains no module: harmless.)
#include "attempt.h"

int main(void) { judge_harmless(syscall(SYS_init_module, NULL, 0, ""), ENOEXEC, EFAULT, "init_module"); }
