// Makes a program outside one that runs as its owner for everybody.
#include "attempt.h"

int main(void) {
    step(fchmodat(AT_FDCWD, outside("file"), 04755, 0), "fchmodat");
    escaped("fchmodat");
}
