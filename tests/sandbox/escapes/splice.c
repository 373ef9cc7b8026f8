// Splices a pipe into a file outside.
#include "attempt.h"

int main(void) {
    int ends[2];
    if (pipe(ends) < 0 || write(ends[1], "data", 4) != 4) impossible("pipe");
    int to = (int)step(open(outside("file"), O_WRONLY), "open");
    step(splice(ends[0], NULL, to, NULL, 4, 0), "splice");
    escaped("splice");
}
