// Sets an extended attribute on a file of `.git`.
#include <sys/xattr.h>

#include "attempt.h"

int main(void) {
    step(setxattr(".git/config", "user.escaped", "x", 1, 0), "setxattr");
    escaped("setxattr");
}
