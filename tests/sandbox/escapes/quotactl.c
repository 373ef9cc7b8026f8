// Changes disk quotas of users. (The disk is missing: harmless.)
#include <sys/quota.h>

#include "attempt.h"

int main(void) {
    judge_harmless(quotactl(QCMD(Q_GETFMT, USRQUOTA), "/nonexistent", 0, NULL), ENOENT, ENOENT, "quotactl");
}
