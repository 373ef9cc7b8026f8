// Takes an extended attribute from a file outside.
#include <sys/xattr.h>

#include "attempt.h"

int main(void) {
    // The scene gives it one where the file system has them.
    if (getxattr(outside("file"), "user.kept", NULL, 0) < 0) impossible("getxattr");
    step(removexattr(outside("file"), "user.kept"), "removexattr");
    escaped("removexattr");
}
