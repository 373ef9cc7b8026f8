// Bind-mounts a directory outside into the workspace, in a new mount namespace, and writes to it there.
#include "attempt.h"

int main(void) {
    enter_new_namespaces();
    step(mount(variable("OUTSIDE"), "directory", NULL, MS_BIND, NULL), "mount");
    create("directory/new");
}
