// Clears `no_new_privs`, which disables setuid programs.
#include "attempt.h"

int main(void) {
    prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0);
    if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0) escaped("prctl");
    blocked("prctl");
}
