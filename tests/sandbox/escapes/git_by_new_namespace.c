// Removes the cover of `.git` in a new mount namespace.
#include "attempt.h"

int main(void) {
    enter_new_namespaces();
    umount2(".git", MNT_DETACH);
    create(".git/hooks/pre-commit");
}
