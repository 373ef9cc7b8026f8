// Asks whether two processes share something of the kernel, which gives away where it lies.
#include <linux/kcmp.h>

#include "attempt.h"

int main(void) {
    step(syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILES, 0, 0), "kcmp");
    escaped("kcmp");
}
