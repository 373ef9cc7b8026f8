// Stores a key in the kernel.
#include <linux/keyctl.h>

#include "attempt.h"

int main(void) {
    step(syscall(SYS_add_key, "user", "escaped", "x", 1, KEY_SPEC_PROCESS_KEYRING), "add_key");
    escaped("add_key");
}
