// Creates a packet socket, which reads and sends raw frames.
#include "network.h"

int main(void) {
    step(socket(AF_PACKET, SOCK_RAW, 0), "socket");
    escaped("socket");
}
