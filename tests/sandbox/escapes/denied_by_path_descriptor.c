// Opens a denied file with O_PATH, and then through /proc/self/fd.
#include "attempt.h"

int main(void) {
    int named = (int)step(open("directory/secret", O_PATH), "open a path");
    read_secret(open(path("/proc/self/fd/%d", named), O_RDONLY), "reopen");
}
