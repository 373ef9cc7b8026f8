// Sets an inode flag of a file outside by the newest call for it ("not to be dumped": harmless).
#include <linux/fs.h>

#include "attempt.h"

int main(void) {
    struct {
        uint64_t flags;
        uint32_t extent_size, extents, project, copy_extent_size;
    } attributes = {.flags = FS_XFLAG_NODUMP};
    step(syscall(469, AT_FDCWD, outside("file"), &attributes, sizeof attributes, 0), "file_setattr");
    escaped("file_setattr");
}
