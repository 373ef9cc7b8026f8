// Uses the cryptography of the kernel, where many holes were.
#include "network.h"

int main(void) {
    step(socket(AF_ALG, SOCK_SEQPACKET, 0), "socket");
    escaped("socket");
}
