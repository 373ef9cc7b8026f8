// Unmounts `.git`. (If it is not a mount, EINVAL shows that the call was let through.)
#include "attempt.h"

int main(void) { judge_harmless(umount2(".git", MNT_DETACH), EINVAL, EINVAL, "umount2"); }
