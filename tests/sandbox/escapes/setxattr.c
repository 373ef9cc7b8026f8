// Sets an extended attribute on a file outside.
#include <sys/xattr.h>

#include "attempt.h"

int main(void) {
    step(setxattr(outside("file"), "user.escaped", "x", 1, 0), "setxattr");
    escaped("setxattr");
}
