// Opens a disk for writing (a loop device; nothing is written to it).
#include "attempt.h"

int main(void) {
    int disk = open("/dev/loop0", O_WRONLY);
    if (disk < 0 && (errno == ENXIO || errno == ENOENT)) impossible("there is no loop device");
    step(disk, "open");
    escaped("open");
}
