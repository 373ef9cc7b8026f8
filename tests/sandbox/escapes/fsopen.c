// Opens a file system context with the new mount API.
#include "attempt.h"

int main(void) {
    step(syscall(SYS_fsopen, "tmpfs", 0), "fsopen");
    escaped("fsopen");
}
