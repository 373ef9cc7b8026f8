// Creates a file outside with 32-bit system calls.
#include <sys/mman.h>

#include "int80.h"

int main(void) {
    int80_or_impossible();
    // Such calls take pointers of 32 bits.
    char *name = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    if (name == MAP_FAILED) impossible("mmap");
    strncpy(name, outside("new"), 4095);
    long result = int80(5, (long)name, O_WRONLY | O_CREAT, 0600);
    if (result < 0) errno = (int)-result;
    write_through(result, "open");
}
