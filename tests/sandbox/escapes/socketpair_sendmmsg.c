// Sends datagrams from one end of a socket pair to another process, with sendmmsg, whose addresses are in memory.
#include "network.h"

int main(void) {
    int ends[2];
    struct sockaddr_un address = unix_path(outside("datagram"));
    struct iovec iov = {"escaped", 7};
    struct mmsghdr message = {
        .msg_hdr = {.msg_name = &address, .msg_namelen = sizeof address, .msg_iov = &iov, .msg_iovlen = 1}};
    step(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends), "socketpair");
    step(sendmmsg(ends[0], &message, 1, 0), "sendmmsg");
    escaped("sendmmsg");
}
