// Turns the seccomp filter off.
#include "attempt.h"

int main(void) {
    prctl(PR_SET_SECCOMP, 0, NULL, 0, 0);
    if (prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 0) escaped("prctl");
    blocked("prctl");
}
