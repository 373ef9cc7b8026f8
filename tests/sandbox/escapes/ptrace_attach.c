// Attaches to another process as a debugger.
#include <sys/ptrace.h>

#include "attempt.h"

int main(void) {
    step(ptrace(PTRACE_ATTACH, (pid_t)number("VICTIM"), NULL, NULL), "ptrace");
    escaped("ptrace");
}
