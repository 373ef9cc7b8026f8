// Opens the file that reboots the machine (nothing is written to it).
#include "attempt.h"

int main(void) {
    int trigger = open("/proc/sysrq-trigger", O_WRONLY);
    if (trigger < 0 && errno == ENOENT) impossible("the kernel has no such file");
    step(trigger, "open");
    escaped("open");
}
