// Runs a setuid program of another user.
#include "attempt.h"

int main(int count, char **arguments) {
    struct stat copy;
    (void)arguments;
    if (count == 1) {
        if (stat(variable("SETUID_COPY"), &copy) < 0 || !(copy.st_mode & S_ISUID)) impossible("only root can create a setuid copy");
        step(execl(variable("SETUID_COPY"), "copy", "again", NULL), "execl");
    }
    if (geteuid() != getuid()) escaped("setuid");
    blocked("still the same user");
}
