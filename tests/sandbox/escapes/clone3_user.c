// Creates a child in a new user namespace with clone3, whose flags a filter cannot see.
#include <linux/sched.h>

#include "attempt.h"

int main(void) {
    struct clone_args arguments = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
    long child = syscall(SYS_clone3, &arguments, sizeof arguments);
    if (child == 0) _exit(0);
    // The filter reports a missing call, so that libraries use the older one.
    if (child < 0) blocked("clone3");
    escaped("clone3");
}
