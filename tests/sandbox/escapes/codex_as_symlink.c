// Creates the missing `.codex` as a symlink to a directory of the workspace.
#include "attempt.h"

int main(void) {
    step(symlink("directory", ".codex"), "symlink");
    create(".codex/config.toml");
}
