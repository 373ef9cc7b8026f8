// Opens a generic netlink socket to drivers and subsystems of the kernel.
#include "network.h"

int main(void) {
    step(socket(AF_NETLINK, SOCK_RAW, 16), "socket");
    escaped("socket");
}
