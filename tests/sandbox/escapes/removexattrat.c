// Removes an extended attribute from a file outside with the newest call for it.
#include <sys/xattr.h>

#include "attempt.h"

int main(void) {
    if (getxattr(outside("file"), "user.kept", NULL, 0) < 0) impossible("getxattr");
    step(syscall(466, AT_FDCWD, outside("file"), 0, "user.kept"), "removexattrat");
    escaped("removexattrat");
}
