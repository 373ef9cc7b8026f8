// Moves a directory of the workspace outside.
#include "attempt.h"

int main(void) {
    step(rename("directory", outside("new")), "rename");
    escaped("rename");
}
