// Opens a file of /sys for writing: what is written there is announced to the device manager.
#include "attempt.h"

int main(void) {
    step(open("/sys/devices/virtual/mem/null/uevent", O_WRONLY), "open");
    escaped("open");
}
