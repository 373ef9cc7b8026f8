// Binds one end of a socket pair to a name, so that other processes can send to it.
#include "network.h"

int main(void) {
    int ends[2];
    struct sockaddr_un address = unix_path("bound");
    step(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends), "socketpair");
    step(bind(ends[0], (struct sockaddr *)&address, sizeof address), "bind");
    escaped("bind");
}
