// Truncates the configuration of git.
#include "attempt.h"

int main(void) {
    step(truncate(".git/config", 0), "truncate");
    escaped("truncate");
}
