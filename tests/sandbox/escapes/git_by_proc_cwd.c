// Writes to `.git` through the magic link to the working directory.
#include "attempt.h"

int main(void) { create("/proc/self/cwd/.git/hooks/pre-commit"); }
