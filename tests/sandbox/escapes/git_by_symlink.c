// Writes to `.git` through a symlink in the workspace.
#include "attempt.h"

int main(void) {
    prepare(symlink(".git", "alias"), "symlink in the workspace");
    create("alias/hooks/pre-commit");
}
