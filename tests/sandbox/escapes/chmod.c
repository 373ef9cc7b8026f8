// Changes the mode of a file outside.
#include "attempt.h"

int main(void) {
    step(chmod(outside("file"), 0666), "chmod");
    escaped("chmod");
}
