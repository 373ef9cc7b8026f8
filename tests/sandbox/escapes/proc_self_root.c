// Creates a file outside through the magic link to the root directory.
#include "attempt.h"

int main(void) { create(path("/proc/self/root%s", outside("new"))); }
