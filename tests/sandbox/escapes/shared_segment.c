// Changes a shared memory segment of other processes.
#include <sys/shm.h>

#include "attempt.h"

int main(void) {
    char *segment = shmat((int)number("VICTIM_SEGMENT"), NULL, 0);
    if (segment == (void *)-1) {
        // In a private IPC namespace the number does not exist.
        if (errno == EINVAL) errno = ENOENT;
        step(-1, "shmat");
    }
    segment[0] = '!';
    escaped("shmat");
}
