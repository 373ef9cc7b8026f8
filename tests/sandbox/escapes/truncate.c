// Truncates a file outside by its path.
#include "attempt.h"

int main(void) {
    step(truncate(outside("file"), 1), "truncate");
    escaped("truncate");
}
