// Removes a file of `.git`.
#include "attempt.h"

int main(void) {
    step(unlink(".git/HEAD"), "unlink");
    escaped("unlink");
}
