// Restricts itself with a ruleset that allows everything, in case it replaces the old one.
#include <linux/landlock.h>

#include "attempt.h"

int main(void) {
    uint64_t writing = LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_MAKE_REG;
    struct landlock_ruleset_attr attributes = {.handled_access_fs = writing};
    int ruleset = (int)step(syscall(SYS_landlock_create_ruleset, &attributes, sizeof attributes, 0), "create");
    struct landlock_path_beneath_attr rule = {.allowed_access = writing, .parent_fd = open("/", O_PATH)};
    step(syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0), "add a rule");
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    step(syscall(SYS_landlock_restrict_self, ruleset, 0), "restrict");
    create(outside("new"));
}
