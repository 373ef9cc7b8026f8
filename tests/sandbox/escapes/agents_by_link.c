// Creates the missing `.agents` as a hard link to a file.
#include "attempt.h"

int main(void) {
    step(link("file", ".agents"), "link");
    escaped("link");
}
