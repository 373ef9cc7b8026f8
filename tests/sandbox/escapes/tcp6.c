// Connects to a TCP port of this machine over IPv6.
#include "network.h"

int main(void) {
    struct sockaddr_in6 address = loopback6(number("TCP6_PORT"));
    int connection = (int)step(socket(AF_INET6, SOCK_STREAM, 0), "socket");
    step(connect(connection, (struct sockaddr *)&address, sizeof address), "connect");
    escaped("connect");
}
