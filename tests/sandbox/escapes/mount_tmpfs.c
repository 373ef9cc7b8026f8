// Mounts a file system over a directory of the workspace.
#include "attempt.h"

int main(void) {
    step(mount("tmpfs", "directory", "tmpfs", 0, NULL), "mount");
    umount2("directory", MNT_DETACH);
    escaped("mount");
}
