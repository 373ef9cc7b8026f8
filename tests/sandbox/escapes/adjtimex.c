// Sets the clock rate (to its current value: harmless).
#include <sys/timex.h>

#include "attempt.h"

int main(void) {
    struct timex clock = {0};
    step(adjtimex(&clock), "adjtimex");
    clock.modes = ADJ_FREQUENCY;
    step(adjtimex(&clock), "adjtimex");
    escaped("adjtimex");
}
