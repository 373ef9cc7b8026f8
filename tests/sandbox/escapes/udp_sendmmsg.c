// Sends several datagrams with sendmmsg.
#include "network.h"

int main(void) {
    struct sockaddr_in address = loopback4(number("UDP4_PORT"));
    struct iovec iov = {"escaped", 7};
    struct mmsghdr message = {
        .msg_hdr = {.msg_name = &address, .msg_namelen = sizeof address, .msg_iov = &iov, .msg_iovlen = 1}};
    int sender = (int)step(socket(AF_INET, SOCK_DGRAM, 0), "socket");
    step(sendmmsg(sender, &message, 1, 0), "sendmmsg");
    escaped("sendmmsg");
}
