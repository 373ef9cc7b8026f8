// Creates a socket to the host of this virtual machine.
#include "network.h"

int main(void) {
    step(socket(AF_VSOCK, SOCK_STREAM, 0), "socket");
    escaped("socket");
}
