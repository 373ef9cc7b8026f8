// Creates a regular file outside with mknod.
#include "attempt.h"

int main(void) {
    step(mknod(outside("new"), S_IFREG | 0600, 0), "mknod");
    escaped("mknod");
}
