// Sets an inode flag of a file outside that is open for reading, with the newer of the two ioctls for it.
#include <linux/fs.h>
#include <sys/ioctl.h>

#include "attempt.h"

int main(void) {
    struct fsxattr attributes;
    int file = (int)step(open(outside("file"), O_RDONLY), "open for reading");
    if (ioctl(file, FS_IOC_FSGETXATTR, &attributes) < 0) impossible("the file system has no flags");
    attributes.fsx_xflags ^= FS_XFLAG_NODUMP;
    step(ioctl(file, FS_IOC_FSSETXATTR, &attributes), "FS_IOC_FSSETXATTR");
    escaped("FS_IOC_FSSETXATTR");
}
