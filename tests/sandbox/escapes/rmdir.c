// Removes a directory outside.
#include "attempt.h"

int main(void) {
    step(rmdir(outside("empty")), "rmdir");
    escaped("rmdir");
}
