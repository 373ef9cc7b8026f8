// Creates a socket with the x32 number of the call.
#include "network.h"

int main(void) {
#ifndef __x86_64__
    impossible("another architecture");
#endif
    step(syscall(0x40000000 + 41, AF_INET, SOCK_STREAM, 0), "socket");
    escaped("socket");
}
