// Sends a datagram.
#include "network.h"

int main(void) {
    struct sockaddr_in address = loopback4(number("UDP4_PORT"));
    int sender = (int)step(socket(AF_INET, SOCK_DGRAM, 0), "socket");
    step(sendto(sender, "escaped", 7, 0, (struct sockaddr *)&address, sizeof address), "sendto");
    escaped("sendto");
}
