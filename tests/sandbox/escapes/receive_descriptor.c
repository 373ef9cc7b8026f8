// Requests a writable descriptor from an outside process.
#include <sys/socket.h>
#include <sys/un.h>

#include "attempt.h"

int main(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, outside("stream"), sizeof address.sun_path - 1);
    int connection = (int)step(socket(AF_UNIX, SOCK_STREAM, 0), "socket");
    step(connect(connection, (struct sockaddr *)&address, sizeof address), "connect");
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec iov = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    step(recvmsg(connection, &message, 0), "recvmsg");
    int file;
    memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof file);
    write_through(file, "a received descriptor");
}
