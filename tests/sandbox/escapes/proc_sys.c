// Opens a setting of the kernel for writing: this one names the program that runs as root when something crashes.
#include "attempt.h"

int main(void) {
    step(open("/proc/sys/kernel/core_pattern", O_WRONLY), "open");
    escaped("open");
}
