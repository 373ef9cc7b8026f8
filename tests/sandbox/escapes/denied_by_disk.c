// Opens a disk, from which denied files could be read around the file system (a loop device with nothing behind it).
#include "attempt.h"

int main(void) {
    int disk = open("/dev/loop0", O_RDONLY);
    if (disk < 0 && (errno == ENXIO || errno == ENOENT)) impossible("there is no loop device");
    step(disk, "open");
    escaped("open");
}
