// Changes the root directory: a process with an open directory outside the new root can leave it.
#include "attempt.h"

int main(void) {
    step(chroot("directory"), "chroot");
    escaped("chroot");
}
