// Opens a kernel setting for writing: this one names the program that runs as root after a crash.
#include "attempt.h"

int main(void) {
    step(open("/proc/sys/kernel/core_pattern", O_WRONLY), "open");
    escaped("open");
}
