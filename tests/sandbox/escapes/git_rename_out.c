// Moves a file out of `.git`.
#include "attempt.h"

int main(void) {
    step(rename(".git/config", "config"), "rename");
    escaped("rename");
}
