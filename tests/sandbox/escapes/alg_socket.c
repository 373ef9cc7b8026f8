// Creates a socket to the crypto API of the kernel, which has had many vulnerabilities.
#include "network.h"

int main(void) {
    step(socket(AF_ALG, SOCK_SEQPACKET, 0), "socket");
    escaped("socket");
}
