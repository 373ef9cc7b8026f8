// Enters a new mount namespace.
#include "attempt.h"

int main(void) {
    step(unshare(CLONE_NEWNS), "unshare");
    escaped("unshare");
}
