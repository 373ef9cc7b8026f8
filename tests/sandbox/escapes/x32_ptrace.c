// Forks a child that lets its parent trace it, with the x32 number of ptrace.
#include "attempt.h"

int main(void) {
#ifndef __x86_64__
    impossible("another architecture");
#endif
    pid_t child = fork();
    if (child != 0) adopt(child);
    step(syscall(0x40000000 + 521, 0, 0, 0, 0), "ptrace");
    escaped("ptrace");
}
