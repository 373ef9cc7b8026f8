// Removes an extended attribute from a file outside.
#include <sys/xattr.h>

#include "attempt.h"

int main(void) {
    // The scene sets the attribute if the file system supports it.
    if (getxattr(outside("file"), "user.kept", NULL, 0) < 0) impossible("getxattr");
    step(removexattr(outside("file"), "user.kept"), "removexattr");
    escaped("removexattr");
}
