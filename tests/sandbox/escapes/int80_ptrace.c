// Forks a child that lets its parent trace it, with a 32-bit system call.
#include "int80.h"

int main(void) {
    int80_or_impossible();
    pid_t child = fork();
    if (child != 0) adopt(child);
    long result = int80(26, 0, 0, 0);
    if (result < 0) errno = (int)-result;
    step(result, "ptrace");
    escaped("ptrace");
}
