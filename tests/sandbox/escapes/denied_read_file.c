// Reads a denied file in a directory that may be read.
#include "attempt.h"

int main(void) { read_secret(open("directory/secret", O_RDONLY), "open"); }
