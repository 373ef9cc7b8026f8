// Calls quotactl, which can change disk quotas. (It only queries, on a missing disk: harmless.)
#include <sys/quota.h>

#include "attempt.h"

int main(void) {
    judge_harmless(quotactl(QCMD(Q_GETFMT, USRQUOTA), "/nonexistent", 0, NULL), ENOENT, ENOENT, "quotactl");
}
