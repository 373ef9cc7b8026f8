// Reads the environment of another process.
#include "attempt.h"

int main(void) {
    char byte;
    int environment = (int)step(open(victim("environ"), O_RDONLY), "open");
    step(read(environment, &byte, 1), "read");
    escaped("read");
}
