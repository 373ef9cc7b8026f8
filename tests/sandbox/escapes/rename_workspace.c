// Renames the workspace itself, to put another directory in its place.
#include "attempt.h"

int main(void) {
    step(rename("../workspace", "../moved"), "rename");
    step(mkdir("../workspace", 0700), "mkdir");
    escaped("rename");
}
