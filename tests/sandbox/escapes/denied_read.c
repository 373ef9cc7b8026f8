// Reads a denied file.
#include "attempt.h"

int main(void) { read_secret(open("denied/secret", O_RDONLY), "open"); }
