// Gives a file of `.git` an extended attribute.
#include <sys/xattr.h>

#include "attempt.h"

int main(void) {
    step(setxattr(".git/config", "user.escaped", "x", 1, 0), "setxattr");
    escaped("setxattr");
}
