// Writes to `.git` by a path that starts outside.
#include "attempt.h"

int main(void) { create(outside("../workspace/.git/hooks/pre-commit")); }
