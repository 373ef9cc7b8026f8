// Creates a symlink in `.git`.
#include "attempt.h"

int main(void) {
    step(symlink("../file", ".git/hooks/pre-push"), "symlink");
    escaped("symlink");
}
