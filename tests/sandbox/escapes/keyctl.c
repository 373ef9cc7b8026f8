// Asks for a keyring of the user, in which there may be keys of others.
#include <linux/keyctl.h>

#include "attempt.h"

int main(void) {
    step(syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_USER_KEYRING, 1), "keyctl");
    escaped("keyctl");
}
