// Sets an inode flag of a file outside with the newest call for it ("no dump": harmless).
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
