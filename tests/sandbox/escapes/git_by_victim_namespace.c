// Enters the mount namespace of a process that sees `.git` without the cover.
#include "attempt.h"

int main(void) {
    char *hook = path("%s/.git/hooks/pre-commit", getcwd(NULL, 0));
    int namespace = (int)step(open(victim("ns/mnt"), O_RDONLY), "open the namespace");
    step(setns(namespace, CLONE_NEWNS), "setns");
    create(hook);
}
