// Asks the kernel about the network, and could change it.
#include "network.h"

int main(void) {
    step(socket(AF_NETLINK, SOCK_RAW, 0), "socket");
    escaped("socket");
}
