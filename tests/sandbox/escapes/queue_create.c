// Creates a message queue that every outside process can find. Permission to open it is checked only once it exists.
#include "attempt.h"

int main(void) {
    char *name = path("exec-server-attempt-%d", getpid());
    long queue = syscall(SYS_mq_open, name, O_RDWR | O_CREAT | O_EXCL, 0600, NULL);
    int error = errno;
    if (syscall(SYS_mq_unlink, name) == 0) escaped("mq_open");
    errno = error;
    step(queue, "mq_open");
    escaped("mq_open, and the queue cannot be removed");
}
