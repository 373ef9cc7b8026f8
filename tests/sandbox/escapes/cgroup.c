// Creates a cgroup.
#include "attempt.h"

int main(void) {
    const char *roots[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids"};
    for (int i = 2; i >= 0; i--) {
        char *group = path("%s/exec-server-attempt-%d", roots[i], getpid());
        if (mkdir(group, 0755) == 0) {
            rmdir(group);
            escaped("mkdir");
        }
    }
    blocked("mkdir");
}
