// Writes to `.git` by a path through another directory.
#include "attempt.h"

int main(void) { create("directory/../.git/hooks/pre-commit"); }
