// Makes a system call of 32-bit programs, where each number means another call than in 64-bit programs.
#include "int80.h"

int main(void) {
    int80_or_impossible();
    if (int80(20, 0, 0, 0) == getpid()) escaped("int 0x80");
    blocked("int 0x80");
}
