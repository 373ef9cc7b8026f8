// Creates a child in a new user namespace.
#include "attempt.h"

int main(void) {
    long child = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0) _exit(0);
    step(child, "clone");
    escaped("clone");
}
