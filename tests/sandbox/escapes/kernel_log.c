// Opens the kernel log for writing.
#include "attempt.h"

int main(void) {
    step(open("/dev/kmsg", O_WRONLY), "open");
    escaped("open");
}
