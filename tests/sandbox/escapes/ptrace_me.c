// Forks a child that lets its parent trace it.
#include <sys/ptrace.h>

#include "attempt.h"

int main(void) {
    pid_t child = fork();
    if (child != 0) adopt(child);
    step(ptrace(PTRACE_TRACEME, 0, NULL, NULL), "ptrace");
    escaped("ptrace");
}
