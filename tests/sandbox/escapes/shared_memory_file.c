// Creates a shared memory object that another process could open.
#include <sys/mman.h>

#include "attempt.h"

int main(void) {
    char *name = path("/exec-server-attempt-%d", getpid());
    int object = (int)step(shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600), "shm_open");
    shm_unlink(name);
    struct stat status;
    step(fstat(object, &status), "fstat");
    errno = 0;
    if ((long)status.st_dev != number("VICTIM_SHARED_MEMORY")) blocked("shm_open: private to the sandbox");
    write_through(object, "shm_open");
}
