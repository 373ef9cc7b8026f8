// Changes the times of a file outside that is open for reading.
#include "attempt.h"

int main(void) {
    struct timespec times[2] = {{1, 0}, {1, 0}};
    int file = (int)step(open(outside("file"), O_RDONLY), "open for reading");
    step(futimens(file, times), "futimens");
    escaped("futimens");
}
