// Writes to `.git` through the root directory of a process that sees it without the cover.
#include "attempt.h"

int main(void) { create(path("/proc/%ld/root%s/.git/hooks/pre-commit", number("VICTIM"), getcwd(NULL, 0))); }
