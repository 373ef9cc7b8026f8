// Removes the cover of a denied directory in a new mount namespace.
#include "attempt.h"

int main(void) {
    enter_new_namespaces();
    umount2("denied", MNT_DETACH);
    read_secret(open("denied/secret", O_RDONLY), "open");
}
