// Learns how large a denied file is.
#include "attempt.h"

int main(void) {
    struct stat status;
    step(stat("denied/secret", &status), "stat");
    if (status.st_size == 5) escaped("stat");
    blocked("the size is another");
}
