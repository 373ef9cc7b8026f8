// Creates a character device in the workspace (/dev/null: harmless).
#include <sys/sysmacros.h>

#include "attempt.h"

int main(void) {
    step(mknod("device", S_IFCHR | 0600, makedev(1, 3)), "mknod");
    escaped("mknod");
}
