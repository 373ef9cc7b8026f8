// Opens a file outside for both reading and writing.
#include "attempt.h"

int main(void) { write_through(open(outside("file"), O_RDWR), "open"); }
