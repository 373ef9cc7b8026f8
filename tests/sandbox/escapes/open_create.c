// Creates a file outside.
#include "attempt.h"

int main(void) { create(outside("new")); }
