// Changes a file outside through a shared mapping.
#include <sys/mman.h>

#include "attempt.h"

int main(void) {
    int file = (int)step(open(outside("file"), O_RDWR), "open");
    char *content = mmap(NULL, 4, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (content == MAP_FAILED) blocked("mmap");
    content[0] = '!';
    escaped("mmap");
}
