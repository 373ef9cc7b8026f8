// Takes the cover off `.git` in a mount namespace of its own.
#include "attempt.h"

int main(void) {
    enter_new_namespaces();
    umount2(".git", MNT_DETACH);
    create(".git/hooks/pre-commit");
}
