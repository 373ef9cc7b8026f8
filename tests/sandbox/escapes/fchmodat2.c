// Changes the mode of a file outside with the newest call for it, on an O_PATH descriptor.
#include "attempt.h"

int main(void) {
    int named = (int)step(open(outside("file"), O_PATH), "open a path");
    step(syscall(452, named, "", 0666, AT_EMPTY_PATH), "fchmodat2");
    escaped("fchmodat2");
}
