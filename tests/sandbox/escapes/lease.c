// Makes whoever opens a file for writing wait: the server, too.
#include "attempt.h"

int main(void) {
    int file = (int)step(open(outside("directory/file"), O_RDONLY), "open");
    step(fcntl(file, F_SETLEASE, F_RDLCK), "F_SETLEASE");
    escaped("F_SETLEASE");
}
