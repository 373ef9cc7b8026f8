// Reopens an O_PATH descriptor of a file outside so that the file is truncated.
#include "attempt.h"

int main(void) {
    int named = (int)step(open(outside("file"), O_PATH), "open a path");
    int writing = (int)step(open(path("/proc/self/fd/%d", named), O_RDWR), "reopen");
    step(ftruncate(writing, 0), "ftruncate");
    escaped("ftruncate");
}
