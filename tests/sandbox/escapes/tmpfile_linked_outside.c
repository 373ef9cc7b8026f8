// Creates a nameless file in the workspace and links it to a name outside.
#include "attempt.h"

int main(void) {
    int file = (int)prepare(open(".", O_TMPFILE | O_WRONLY, 0600), "O_TMPFILE in the workspace");
    step(linkat(AT_FDCWD, path("/proc/self/fd/%d", file), AT_FDCWD, outside("new"), AT_SYMLINK_FOLLOW), "linkat");
    escaped("linkat");
}
