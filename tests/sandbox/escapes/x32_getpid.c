// Makes a system call by its x32 number.
#include "attempt.h"

int main(void) {
#ifndef __x86_64__
    impossible("another architecture");
#endif
    step(syscall(0x40000000 + SYS_getpid), "getpid");
    escaped("getpid");
}
