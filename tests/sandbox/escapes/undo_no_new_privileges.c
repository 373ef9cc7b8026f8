// Takes back that setuid programs have no effect.
#include "attempt.h"

int main(void) {
    prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0);
    if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0) escaped("prctl");
    blocked("prctl");
}
