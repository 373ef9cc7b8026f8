// Connects to a TCP port with TCP Fast Open.
#include "network.h"

int main(void) {
    struct sockaddr_in address = loopback4(number("TCP4_PORT"));
    int connection = (int)step(socket(AF_INET, SOCK_STREAM, 0), "socket");
    step(sendto(connection, "x", 1, MSG_FASTOPEN, (struct sockaddr *)&address, sizeof address), "sendto");
    escaped("sendto");
}
