// Opens a file of /sys for writing: writes to it are announced to the device manager.
#include "attempt.h"

int main(void) {
    step(open("/sys/devices/virtual/mem/null/uevent", O_WRONLY), "open");
    escaped("open");
}
