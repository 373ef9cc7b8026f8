// Creates a disk device in the workspace. (The loop device is unused: harmless.)
#include <sys/sysmacros.h>

#include "attempt.h"

int main(void) {
    step(mknod("disk", S_IFBLK | 0600, makedev(7, 0)), "mknod");
    escaped("mknod");
}
