// Sets the host name (to its current value: harmless).
#include "attempt.h"

int main(void) {
    char name[256];
    if (gethostname(name, sizeof name) < 0) impossible("gethostname");
    step(sethostname(name, strlen(name)), "sethostname");
    escaped("sethostname");
}
