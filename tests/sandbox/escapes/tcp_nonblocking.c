// Connects to a TCP port without waiting for the connection.
#include <poll.h>

#include "network.h"

int main(void) {
    struct sockaddr_in address = loopback4(number("TCP4_PORT"));
    int connection = (int)step(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP), "socket");
    if (connect(connection, (struct sockaddr *)&address, sizeof address) < 0 && errno != EINPROGRESS)
        blocked("connect");
    struct pollfd waiting = {.fd = connection, .events = POLLOUT};
    poll(&waiting, 1, -1);
    if (waiting.revents & (POLLERR | POLLHUP)) blocked("connect");
    escaped("connect");
}
