// Opens a kernel setting for writing: the one that names the program run as root after a crash.
#include "attempt.h"

int main(void) {
    step(open("/proc/sys/kernel/core_pattern", O_WRONLY), "open");
    escaped("open");
}
