// Listens to what the kernel tells the device manager.
#include "network.h"

int main(void) {
    step(socket(AF_NETLINK, SOCK_DGRAM, 15), "socket");
    escaped("socket");
}
