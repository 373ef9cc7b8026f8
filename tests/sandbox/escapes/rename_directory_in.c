// Moves a directory from outside into the workspace, with its content.
#include "attempt.h"

int main(void) {
    step(rename(outside("directory"), "stolen"), "rename");
    escaped("rename");
}
