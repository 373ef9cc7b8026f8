// Writes to `.git` by a path that begins outside.
#include "attempt.h"

int main(void) { create(outside("../workspace/.git/hooks/pre-commit")); }
