// Creates a disk device in the workspace. (It is a loop device, and is not opened: harmless.)
#include <sys/sysmacros.h>

#include "attempt.h"

int main(void) {
    step(mknod("disk", S_IFBLK | 0600, makedev(7, 0)), "mknod");
    escaped("mknod");
}
