// Requests a key from the kernel, which runs a program to find it.
#include "attempt.h"

int main(void) {
    // Without callout info no program is run. The key does not exist.
    judge_harmless(syscall(SYS_request_key, "user", "no-such-key", NULL, 0), ENOKEY, ENOKEY, "request_key");
}
