// Sends a datagram to the Unix socket of another process.
#include "network.h"

int main(void) {
    struct sockaddr_un address = unix_path(outside("datagram"));
    int sender = (int)step(socket(AF_UNIX, SOCK_DGRAM, 0), "socket");
    step(sendto(sender, "escaped", 7, 0, (struct sockaddr *)&address, sizeof address), "sendto");
    escaped("sendto");
}
