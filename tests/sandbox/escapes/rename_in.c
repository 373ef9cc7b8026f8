// Moves a file from outside into the workspace, where it could be changed.
#include "attempt.h"

int main(void) {
    step(rename(outside("file"), "stolen"), "rename");
    escaped("rename");
}
