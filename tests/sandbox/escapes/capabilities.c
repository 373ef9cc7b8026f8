// Looks for a capability that it has or can regain, and that reaches beyond a sandbox.
#include <linux/capability.h>

#include "attempt.h"

int main(void) {
    const int dangerous[] = {CAP_SYS_ADMIN,  CAP_SYS_PTRACE, CAP_SYS_MODULE, CAP_SYS_RAWIO, CAP_SYS_BOOT,
                             CAP_SYS_TIME,   CAP_NET_ADMIN,  CAP_NET_RAW,    CAP_MKNOD,     CAP_SYS_CHROOT,
                             CAP_LINUX_IMMUTABLE, CAP_SYS_RESOURCE, CAP_SETFCAP, CAP_MAC_ADMIN, CAP_SYSLOG};
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct has[2];
    step(syscall(SYS_capget, &header, has), "capget");
    for (size_t i = 0; i < sizeof dangerous / sizeof *dangerous; i++) {
        unsigned word = (unsigned)dangerous[i] / 32, bit = 1u << (dangerous[i] % 32);
        unsigned any = has[word].permitted | has[word].effective | has[word].inheritable;
        if (any & bit) escaped(path("%d", dangerous[i]));
    }
    errno = 0;
    blocked("no dangerous capability");
}
