// Creates a file outside, relative to a descriptor of its directory.
#include "attempt.h"

int main(void) {
    int directory = (int)step(open(variable("OUTSIDE"), O_PATH | O_DIRECTORY), "open the directory");
    write_through(openat(directory, "new", O_WRONLY | O_CREAT, 0600), "openat");
}
