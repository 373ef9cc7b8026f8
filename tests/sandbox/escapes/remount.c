// Makes a read-only mount writable again.
#include "attempt.h"

int main(void) {
    judge_harmless(mount(NULL, ".git", NULL, MS_REMOUNT | MS_BIND, NULL), EINVAL, EINVAL, "mount");
}
