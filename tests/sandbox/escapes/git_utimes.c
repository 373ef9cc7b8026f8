// Changes the times of a file of `.git`.
#include "attempt.h"

int main(void) {
    struct timespec times[2] = {{1, 0}, {1, 0}};
    step(utimensat(AT_FDCWD, ".git/config", times, 0), "utimensat");
    escaped("utimensat");
}
