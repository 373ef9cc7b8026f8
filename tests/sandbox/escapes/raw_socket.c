// Creates a raw IP socket.
#include "network.h"

int main(void) {
    step(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP), "socket");
    escaped("socket");
}
