// Takes the cover off a denied directory in a mount namespace of its own.
#include "attempt.h"

int main(void) {
    enter_new_namespaces();
    umount2("denied", MNT_DETACH);
    read_secret(open("denied/secret", O_RDONLY), "open");
}
