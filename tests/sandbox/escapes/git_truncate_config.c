// Truncates the git configuration.
#include "attempt.h"

int main(void) {
    step(truncate(".git/config", 0), "truncate");
    escaped("truncate");
}
