// Reads a denied file through the working directory of a process that may read it.
#include "attempt.h"

int main(void) { read_secret(open(victim("cwd/denied/secret"), O_RDONLY), "open"); }
