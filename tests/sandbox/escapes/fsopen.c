// Prepares a file system by the new calls.
#include "attempt.h"

int main(void) {
    step(syscall(SYS_fsopen, "tmpfs", 0), "fsopen");
    escaped("fsopen");
}
