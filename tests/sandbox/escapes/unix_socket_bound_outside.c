// Creates a socket file outside. The table lists this attempt twice: with network access and without.
#include <sys/socket.h>
#include <sys/un.h>

#include "attempt.h"

int main(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, outside("new"), sizeof address.sun_path - 1);
    int descriptor = (int)step(socket(AF_UNIX, SOCK_STREAM, 0), "socket");
    step(bind(descriptor, (struct sockaddr *)&address, sizeof address), "bind");
    escaped("bind");
}
