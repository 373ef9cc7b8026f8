// Makes the kernel copy a file of the workspace over one outside.
#include "attempt.h"

int main(void) {
    int from = open("file", O_RDONLY), to = (int)step(open(outside("file"), O_WRONLY), "open");
    step(copy_file_range(from, NULL, to, NULL, 4, 0), "copy_file_range");
    escaped("copy_file_range");
}
