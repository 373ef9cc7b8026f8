// Bind-mounts the outside into the workspace, in its own mount namespace, and writes to it there.
#include "attempt.h"

int main(void) {
    enter_new_namespaces();
    step(mount(variable("OUTSIDE"), "directory", NULL, MS_BIND, NULL), "mount");
    create("directory/new");
}
