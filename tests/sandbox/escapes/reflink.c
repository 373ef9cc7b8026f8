// Turns a file outside into a clone of a file in the workspace.
#include <linux/fs.h>
#include <sys/ioctl.h>

#include "attempt.h"

int main(void) {
    int from = open("file", O_RDONLY), to = (int)step(open(outside("file"), O_WRONLY), "open");
    step(ioctl(to, FICLONE, from), "FICLONE");
    escaped("FICLONE");
}
