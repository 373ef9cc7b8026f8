// Connects one end of a socket pair, which is allowed, to another process.
#include "network.h"

int main(void) {
    int ends[2];
    struct sockaddr_un address = unix_path(outside("datagram"));
    step(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends), "socketpair");
    step(connect(ends[0], (struct sockaddr *)&address, sizeof address), "connect");
    step(send(ends[0], "escaped", 7, 0), "send");
    escaped("send");
}
