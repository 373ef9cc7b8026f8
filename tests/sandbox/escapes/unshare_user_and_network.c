// Enters a new user namespace with a network namespace that it may configure.
#include "attempt.h"

int main(void) {
    step(unshare(CLONE_NEWUSER | CLONE_NEWNET), "unshare");
    escaped("unshare");
}
