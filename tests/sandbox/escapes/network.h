// Addresses for the attempts to use the network.
#ifndef NETWORK_H
#define NETWORK_H

#include "attempt.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "int80.h"

static inline struct sockaddr_in loopback4(long port) {
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static inline struct sockaddr_in6 loopback6(long port) {
    return (struct sockaddr_in6){
        .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = in6addr_loopback};
}

static inline struct sockaddr_un unix_path(const char *file) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, file, sizeof address.sun_path - 1);
    return address;
}

#endif
