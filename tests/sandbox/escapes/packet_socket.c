// Sees and makes frames of the network interfaces.
#include "network.h"

int main(void) {
    step(socket(AF_PACKET, SOCK_RAW, 0), "socket");
    escaped("socket");
}
