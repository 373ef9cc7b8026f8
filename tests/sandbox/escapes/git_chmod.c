// Changes the mode of a file of `.git`: a hook that may be run is one that is.
#include "attempt.h"

int main(void) {
    step(chmod(".git/config", 0777), "chmod");
    escaped("chmod");
}
