// Sends a datagram over a connected socket.
#include "network.h"

int main(void) {
    struct sockaddr_in address = loopback4(number("UDP4_PORT"));
    int sender = (int)step(socket(AF_INET, SOCK_DGRAM, 0), "socket");
    step(connect(sender, (struct sockaddr *)&address, sizeof address), "connect");
    step(send(sender, "escaped", 7, 0), "send");
    escaped("send");
}
