// Renames `.git` to put another directory in its place.
#include "attempt.h"

int main(void) {
    step(rename(".git", "old"), "rename");
    step(mkdir(".git", 0700), "mkdir");
    create(".git/config");
}
