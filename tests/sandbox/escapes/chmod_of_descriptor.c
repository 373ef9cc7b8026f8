// Changes the mode of a file outside that is open for reading.
#include "attempt.h"

int main(void) {
    int file = (int)step(open(outside("file"), O_RDONLY), "open for reading");
    step(fchmod(file, 0666), "fchmod");
    escaped("fchmod");
}
