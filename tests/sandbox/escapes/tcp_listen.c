// Listens on a TCP port, so that other processes can connect.
#include "network.h"

int main(void) {
    struct sockaddr_in address = loopback4(0);
    int listener = (int)step(socket(AF_INET, SOCK_STREAM, 0), "socket");
    step(bind(listener, (struct sockaddr *)&address, sizeof address), "bind");
    step(listen(listener, 1), "listen");
    escaped("listen");
}
