// Enters a new user namespace, in which it has all capabilities.
#include "attempt.h"

int main(void) {
    step(unshare(CLONE_NEWUSER), "unshare");
    escaped("unshare");
}
