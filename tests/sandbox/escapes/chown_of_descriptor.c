// Changes the group of a file outside that is open for reading.
#include "attempt.h"

int main(void) {
    int file = (int)step(open(outside("file"), O_RDONLY), "open for reading");
    step(fchown(file, (uid_t)-1, getegid()), "fchown");
    escaped("fchown");
}
