// Opens a netlink socket for the events that the kernel sends to the device manager.
#include "network.h"

int main(void) {
    step(socket(AF_NETLINK, SOCK_DGRAM, 15), "socket");
    escaped("socket");
}
