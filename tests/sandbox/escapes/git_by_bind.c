// Bind-mounts the workspace elsewhere without the mounts inside it.
#include "attempt.h"

int main(void) {
    enter_new_namespaces();
    step(mount(".", "directory", NULL, MS_BIND, NULL), "mount");
    create("directory/.git/hooks/pre-commit");
}
