// Changes the root directory, from which a process with an open directory walks out.
#include "attempt.h"

int main(void) {
    step(chroot("directory"), "chroot");
    escaped("chroot");
}
