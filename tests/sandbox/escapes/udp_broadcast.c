// Broadcasts a datagram on the local network (here: on the loopback interface).
#include "network.h"

int main(void) {
    int on = 1;
    struct sockaddr_in address = loopback4(number("UDP4_PORT"));
    int sender = (int)step(socket(AF_INET, SOCK_DGRAM, 0), "socket");
    step(setsockopt(sender, SOL_SOCKET, SO_BROADCAST, &on, sizeof on), "setsockopt");
    step(sendto(sender, "escaped", 7, 0, (struct sockaddr *)&address, sizeof address), "sendto");
    escaped("sendto");
}
