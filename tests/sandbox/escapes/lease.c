// Takes a lease on a file outside, which delays every process that opens it for writing, even the server.
#include "attempt.h"

int main(void) {
    int file = (int)step(open(outside("directory/file"), O_RDONLY), "open");
    step(fcntl(file, F_SETLEASE, F_RDLCK), "F_SETLEASE");
    escaped("F_SETLEASE");
}
