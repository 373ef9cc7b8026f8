// Reads a denied file through the magic link to the root directory.
#include "attempt.h"

int main(void) {
    read_secret(open(path("/proc/self/root%s/denied/secret", getcwd(NULL, 0)), O_RDONLY), "open");
}
