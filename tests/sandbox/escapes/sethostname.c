// Renames the machine (to what it is called: harmless).
#include "attempt.h"

int main(void) {
    char name[256];
    if (gethostname(name, sizeof name) < 0) impossible("gethostname");
    step(sethostname(name, strlen(name)), "sethostname");
    escaped("sethostname");
}
