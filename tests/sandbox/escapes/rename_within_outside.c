// Renames a file outside without moving it.
#include "attempt.h"

int main(void) {
    step(rename(outside("file"), outside("new")), "rename");
    escaped("rename");
}
