// Bind-mounts the workspace elsewhere without the mounts inside it.
#include "attempt.h"

int main(void) {
    enter_new_namespaces();
    step(mount(".", "empty", NULL, MS_BIND, NULL), "mount");
    read_secret(open("empty/denied/secret", O_RDONLY), "open");
}
