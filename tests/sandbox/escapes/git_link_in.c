// Creates a hook as a hard link to a file of the workspace.
#include "attempt.h"

int main(void) {
    step(link("file", ".git/hooks/pre-commit"), "link");
    escaped("link");
}
