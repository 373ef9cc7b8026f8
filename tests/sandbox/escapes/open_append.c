// Appends to a file outside.
#include "attempt.h"

int main(void) { write_through(open(outside("file"), O_WRONLY | O_APPEND), "open"); }
