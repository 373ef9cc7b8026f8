// Takes a lease that blocks every process that opens the file for writing, even the server.
#include "attempt.h"

int main(void) {
    int file = (int)step(open(outside("directory/file"), O_RDONLY), "open");
    step(fcntl(file, F_SETLEASE, F_RDLCK), "F_SETLEASE");
    escaped("F_SETLEASE");
}
