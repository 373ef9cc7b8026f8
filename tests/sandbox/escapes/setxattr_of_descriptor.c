// Sets an extended attribute on a file outside that is open for reading.
#include <sys/xattr.h>

#include "attempt.h"

int main(void) {
    int file = (int)step(open(outside("file"), O_RDONLY), "open for reading");
    step(fsetxattr(file, "user.escaped", "x", 1, 0), "fsetxattr");
    escaped("fsetxattr");
}
