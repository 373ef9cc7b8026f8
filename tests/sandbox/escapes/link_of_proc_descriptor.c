// Creates a hard link in the workspace to a file outside that is open for reading, through /proc.
#include "attempt.h"

int main(void) {
    int file = (int)step(open(outside("file"), O_RDONLY), "open for reading");
    char *link = path("/proc/self/fd/%d", file);
    step(linkat(AT_FDCWD, link, AT_FDCWD, "alias", AT_SYMLINK_FOLLOW), "linkat");
    write_through(open("alias", O_WRONLY), "open the alias");
}
