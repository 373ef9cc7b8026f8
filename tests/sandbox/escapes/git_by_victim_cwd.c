// Writes to `.git` through the working directory of a process that sees it without the cover.
#include "attempt.h"

int main(void) { create(victim("cwd/.git/hooks/pre-commit")); }
