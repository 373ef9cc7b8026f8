// Resolves a numeric address, as programs do, and connects to it.
#include <netdb.h>

#include "network.h"

int main(void) {
    struct addrinfo *found, wanted = {.ai_socktype = SOCK_STREAM};
    char *port = path("%ld", number("TCP4_PORT"));
    if (getaddrinfo("127.0.0.1", port, &wanted, &found) != 0) impossible("getaddrinfo");
    int connection = (int)step(socket(found->ai_family, found->ai_socktype, found->ai_protocol), "socket");
    step(connect(connection, found->ai_addr, found->ai_addrlen), "connect");
    escaped("connect");
}
