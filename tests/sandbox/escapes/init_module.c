// Loads a module into the kernel. (There is none in the memory named: harmless.)
#include "attempt.h"

int main(void) { judge_harmless(syscall(SYS_init_module, NULL, 0, ""), ENOEXEC, EFAULT, "init_module"); }
