// Removes a file outside.
#include "attempt.h"

int main(void) {
    step(unlink(outside("file")), "unlink");
    escaped("unlink");
}
