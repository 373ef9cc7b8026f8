// Changes the owner of a file outside, relative to a descriptor of its directory.
#include "attempt.h"

int main(void) {
    int directory = (int)step(open(variable("OUTSIDE"), O_PATH | O_DIRECTORY), "open the directory");
    step(fchownat(directory, "file", geteuid(), getegid(), 0), "fchownat");
    escaped("fchownat");
}
