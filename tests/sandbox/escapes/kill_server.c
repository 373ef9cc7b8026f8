// Signals the server (signal 0 only checks the permission: harmless).
#include "attempt.h"

int main(void) {
    step(kill((pid_t)number("SERVER"), 0), "kill");
    escaped("kill");
}
