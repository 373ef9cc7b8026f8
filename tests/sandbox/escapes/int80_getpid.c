// Makes a 32-bit system call: its numbers mean other calls than those of 64-bit programs.
#include "int80.h"

int main(void) {
    int80_or_impossible();
    if (int80(20, 0, 0, 0) == getpid()) escaped("int 0x80");
    blocked("int 0x80");
}
