// Makes a system call as 32-bit programs do, whose numbers mean something else.
#include "int80.h"

int main(void) {
    int80_or_impossible();
    if (int80(20, 0, 0, 0) == getpid()) escaped("int 0x80");
    blocked("int 0x80");
}
