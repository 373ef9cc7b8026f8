// Connects to a TCP port with Multipath TCP.
#include "network.h"

int main(void) {
    struct sockaddr_in address = loopback4(number("TCP4_PORT"));
    int connection = (int)step(socket(AF_INET, SOCK_STREAM, 262), "socket");
    step(connect(connection, (struct sockaddr *)&address, sizeof address), "connect");
    escaped("connect");
}
