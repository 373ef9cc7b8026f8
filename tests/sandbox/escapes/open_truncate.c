// Truncates a file outside while opening it.
#include "attempt.h"

int main(void) {
    step(open(outside("file"), O_WRONLY | O_TRUNC), "open");
    escaped("open");
}
