// Creates a file outside with creat.
#include "attempt.h"

int main(void) { write_through(creat(outside("new"), 0600), "creat"); }
