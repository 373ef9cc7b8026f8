// Creates the missing `.agents` as a FIFO.
#include "attempt.h"

int main(void) {
    step(mknod(".agents", S_IFIFO | 0600, 0), "mknod");
    escaped("mknod");
}
