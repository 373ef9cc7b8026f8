// Reads a file that a pattern denies.
#include "attempt.h"

int main(void) { read_secret(open("directory/key.pem", O_RDONLY), "open"); }
