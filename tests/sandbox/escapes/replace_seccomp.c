// Installs a filter that allows everything, in case it replaces the old one.
#include <linux/filter.h>
#include <linux/seccomp.h>

#include "attempt.h"

int main(void) {
    struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {1, all};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    step(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0), "prctl");
    step(unshare(CLONE_NEWUSER), "unshare");
    escaped("unshare");
}
