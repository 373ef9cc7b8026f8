// Reads the size of a denied file.
#include "attempt.h"

int main(void) {
    struct stat status;
    step(stat("denied/secret", &status), "stat");
    if (status.st_size == 5) escaped("stat");
    blocked("the size differs");
}
