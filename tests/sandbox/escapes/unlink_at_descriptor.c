// Removes a file outside, relative to a descriptor of its directory.
#include "attempt.h"

int main(void) {
    int directory = (int)step(open(variable("OUTSIDE"), O_RDONLY | O_DIRECTORY), "open the directory");
    step(unlinkat(directory, "file", 0), "unlinkat");
    escaped("unlinkat");
}
