// Replaces a file outside with one of the workspace.
#include "attempt.h"

int main(void) {
    step(rename("file", outside("file")), "rename");
    escaped("rename");
}
