// Truncates a file outside while opening it for reading: POSIX leaves this undefined, Linux does it.
#include "attempt.h"

int main(void) {
    step(open(outside("file"), O_RDONLY | O_TRUNC), "open");
    escaped("open");
}
