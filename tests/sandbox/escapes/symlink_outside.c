// Creates a symlink outside.
#include "attempt.h"

int main(void) {
    step(symlink("anything", outside("new")), "symlink");
    escaped("symlink");
}
