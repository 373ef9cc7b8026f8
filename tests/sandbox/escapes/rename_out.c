// Moves a file of the workspace outside.
#include "attempt.h"

int main(void) {
    step(rename("file", outside("new")), "rename");
    escaped("rename");
}
