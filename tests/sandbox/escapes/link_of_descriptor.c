// Creates a hard link in the workspace to a file outside that is open for reading, with AT_EMPTY_PATH.
#include "attempt.h"

int main(void) {
    int file = (int)step(open(outside("file"), O_RDONLY), "open for reading");
    if (linkat(file, "", AT_FDCWD, "alias", AT_EMPTY_PATH) < 0) {
        // Old kernels return ENOENT to a process without CAP_DAC_READ_SEARCH.
        if (errno == ENOENT) impossible("linkat");
        blocked("linkat");
    }
    write_through(open("alias", O_WRONLY), "open the alias");
}
