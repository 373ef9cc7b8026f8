// Attaches to another process without stopping it.
#include <sys/ptrace.h>

#include "attempt.h"

int main(void) {
    step(ptrace(PTRACE_SEIZE, (pid_t)number("VICTIM"), NULL, NULL), "ptrace");
    escaped("ptrace");
}
