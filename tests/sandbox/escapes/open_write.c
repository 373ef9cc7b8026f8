// Opens a file outside for writing.
#include "attempt.h"

int main(void) { write_through(open(outside("file"), O_WRONLY), "open"); }
