// Opens kernel memory for reading.
#include "attempt.h"

int main(void) {
    int memory = open("/proc/kcore", O_RDONLY);
    if (memory < 0 && errno == ENOENT) impossible("the kernel has no such file");
    step(memory, "open");
    escaped("open");
}
