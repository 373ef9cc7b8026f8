// Opens the log of the kernel for writing.
#include "attempt.h"

int main(void) {
    step(open("/dev/kmsg", O_WRONLY), "open");
    escaped("open");
}
