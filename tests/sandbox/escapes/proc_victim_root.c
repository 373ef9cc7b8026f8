// Creates a file outside through another process's link to the root directory.
#include "attempt.h"

int main(void) { create(path("/proc/%ld/root%s", number("VICTIM"), outside("new"))); }
