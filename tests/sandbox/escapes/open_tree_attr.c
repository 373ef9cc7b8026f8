// Clones a mount with other attributes, with the newest call for it.
#include <linux/mount.h>

#include "attempt.h"

int main(void) {
    uint64_t attributes[4] = {0, 1, 0, 0};
    step(syscall(467, AT_FDCWD, ".", OPEN_TREE_CLONE, attributes, sizeof attributes), "open_tree_attr");
    escaped("open_tree_attr");
}
