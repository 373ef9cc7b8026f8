// Opens a route netlink socket, through which the network could be changed.
#include "network.h"

int main(void) {
    step(socket(AF_NETLINK, SOCK_RAW, 0), "socket");
    escaped("socket");
}
