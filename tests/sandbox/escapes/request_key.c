// Asks the kernel to find a key, for which it runs a program.
#include "attempt.h"

int main(void) {
    // Without the last argument but one nothing is run: there is no such key.
    judge_harmless(syscall(SYS_request_key, "user", "no-such-key", NULL, 0), ENOKEY, ENOKEY, "request_key");
}
