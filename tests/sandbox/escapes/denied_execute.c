// Runs a denied program.
#include "attempt.h"

int main(void) {
    pid_t child = fork();
    if (child == 0) {
        execl("directory/program.pem", "program", NULL);
        _exit(BLOCKED);
    }
    adopt(child);
}
