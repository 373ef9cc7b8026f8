// Reads a denied file in a readable directory.
#include "attempt.h"

int main(void) { read_secret(open("directory/secret", O_RDONLY), "open"); }
