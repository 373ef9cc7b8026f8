// Compares kernel objects of two processes, which reveals the order of their addresses.
#include <linux/kcmp.h>

#include "attempt.h"

int main(void) {
    step(syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILES, 0, 0), "kcmp");
    escaped("kcmp");
}
