// Changes memory that other processes share.
#include <sys/shm.h>

#include "attempt.h"

int main(void) {
    char *segment = shmat((int)number("VICTIM_SEGMENT"), NULL, 0);
    if (segment == (void *)-1) {
        // There are no such numbers in a namespace of its own.
        if (errno == EINVAL) errno = ENOENT;
        step(-1, "shmat");
    }
    segment[0] = '!';
    escaped("shmat");
}
