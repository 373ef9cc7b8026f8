// Removes a module from the kernel. (No such module exists: harmless.)
#include "attempt.h"

int main(void) {
    judge_harmless(syscall(SYS_delete_module, "no-such-module", O_NONBLOCK), ENOENT, ENOENT, "delete_module");
}
