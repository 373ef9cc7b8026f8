// Plants a hook that git would run outside.
#include "attempt.h"

int main(void) { create(".git/hooks/pre-commit"); }
