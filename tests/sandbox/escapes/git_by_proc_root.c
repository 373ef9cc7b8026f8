// Writes to `.git` through the magic link to the root directory.
#include "attempt.h"

int main(void) { create(path("/proc/self/root%s/.git/hooks/pre-commit", getcwd(NULL, 0))); }
