// Requests the keyring of the user, which may contain keys of other processes.
#include <linux/keyctl.h>

#include "attempt.h"

int main(void) {
    step(syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_USER_KEYRING, 1), "keyctl");
    escaped("keyctl");
}
