// Creates a nameless file outside and links it to a name there.
#include "attempt.h"

int main(void) {
    int file = (int)step(open(variable("OUTSIDE"), O_TMPFILE | O_WRONLY, 0600), "O_TMPFILE");
    step(linkat(AT_FDCWD, path("/proc/self/fd/%d", file), AT_FDCWD, outside("new"), AT_SYMLINK_FOLLOW), "linkat");
    escaped("linkat");
}
