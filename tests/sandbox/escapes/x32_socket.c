// Makes a socket by the numbers of x32 programs.
#include "network.h"

int main(void) {
#ifndef __x86_64__
    impossible("another architecture");
#endif
    step(syscall(0x40000000 + 41, AF_INET, SOCK_STREAM, 0), "socket");
    escaped("socket");
}
