// Removes the cover from a denied directory in its own mount namespace.
#include "attempt.h"

int main(void) {
    enter_new_namespaces();
    umount2("denied", MNT_DETACH);
    read_secret(open("denied/secret", O_RDONLY), "open");
}
