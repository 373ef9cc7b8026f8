// Bind-mounts a directory outside into the workspace and writes to it there.
#include "attempt.h"

int main(void) {
    step(mount(variable("OUTSIDE"), "directory", NULL, MS_BIND, NULL), "mount");
    int file = open("directory/new", O_WRONLY | O_CREAT, 0600);
    int error = errno;
    umount2("directory", MNT_DETACH);
    errno = error;
    write_through(file, "create");
}
