// Makes a program outside setuid.
#include "attempt.h"

int main(void) {
    step(fchmodat(AT_FDCWD, outside("file"), 04755, 0), "fchmodat");
    escaped("fchmodat");
}
