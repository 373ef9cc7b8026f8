// Sends a datagram over IPv6.
#include "network.h"

int main(void) {
    struct sockaddr_in6 address = loopback6(number("UDP6_PORT"));
    int sender = (int)step(socket(AF_INET6, SOCK_DGRAM, 0), "socket");
    step(sendto(sender, "escaped", 7, 0, (struct sockaddr *)&address, sizeof address), "sendto");
    escaped("sendto");
}
