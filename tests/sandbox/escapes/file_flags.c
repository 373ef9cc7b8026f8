// Sets an inode flag of a file outside that is open for reading ("no dump": harmless).
#include <linux/fs.h>
#include <sys/ioctl.h>

#include "attempt.h"

int main(void) {
    int flags = 0, file = (int)step(open(outside("file"), O_RDONLY), "open for reading");
    if (ioctl(file, FS_IOC_GETFLAGS, &flags) < 0) impossible("the file system has no flags");
    flags ^= FS_NODUMP_FL;
    step(ioctl(file, FS_IOC_SETFLAGS, &flags), "FS_IOC_SETFLAGS");
    escaped("FS_IOC_SETFLAGS");
}
