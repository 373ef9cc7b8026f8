// Makes the mount of `.git` writable again. (If it is not a mount, EINVAL shows that the call was let through.)
#include "attempt.h"

int main(void) {
    judge_harmless(mount(NULL, ".git", NULL, MS_REMOUNT | MS_BIND, NULL), EINVAL, EINVAL, "mount");
}
