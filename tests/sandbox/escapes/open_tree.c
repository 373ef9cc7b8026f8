// Clones a mount with the new mount API.
#include <linux/mount.h>

#include "attempt.h"

int main(void) {
    step(syscall(SYS_open_tree, AT_FDCWD, ".", OPEN_TREE_CLONE), "open_tree");
    escaped("open_tree");
}
