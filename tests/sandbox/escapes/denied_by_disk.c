// Opens a disk (here: a loop device): denied files could be read from it without their file system.
#include "attempt.h"

int main(void) {
    int disk = open("/dev/loop0", O_RDONLY);
    if (disk < 0 && (errno == ENXIO || errno == ENOENT)) impossible("there is no loop device");
    step(disk, "open");
    escaped("open");
}
