// Punches a hole into a file outside.
#include "attempt.h"

int main(void) {
    int file = (int)step(open(outside("file"), O_RDWR), "open");
    step(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4), "fallocate");
    escaped("fallocate");
}
