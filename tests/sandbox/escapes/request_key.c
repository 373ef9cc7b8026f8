// Requests a key from the kernel, which can run a program to find it.
#include "attempt.h"

int main(void) {
    // Here it runs none, because there is no callout info. The key does not exist.
    judge_harmless(syscall(SYS_request_key, "user", "no-such-key", NULL, 0), ENOKEY, ENOKEY, "request_key");
}
