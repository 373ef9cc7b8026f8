// Creates a directory in `.git`.
#include "attempt.h"

int main(void) {
    step(mkdir(".git/modules", 0700), "mkdir");
    escaped("mkdir");
}
