// Removes the cover from `.git` in its own mount namespace.
#include "attempt.h"

int main(void) {
    enter_new_namespaces();
    umount2(".git", MNT_DETACH);
    create(".git/hooks/pre-commit");
}
