// Creates a directory outside.
#include "attempt.h"

int main(void) {
    step(mkdir(outside("new"), 0700), "mkdir");
    escaped("mkdir");
}
