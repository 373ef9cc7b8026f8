// Removes a directory of `.git`.
#include "attempt.h"

int main(void) {
    step(rmdir(".git/hooks"), "rmdir");
    escaped("rmdir");
}
