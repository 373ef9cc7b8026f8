// Listens on a Unix socket in the workspace, so that other processes can connect.
#include "network.h"

int main(void) {
    struct sockaddr_un address = unix_path("listener");
    int listener = (int)step(socket(AF_UNIX, SOCK_STREAM, 0), "socket");
    step(bind(listener, (struct sockaddr *)&address, sizeof address), "bind");
    step(listen(listener, 1), "listen");
    escaped("listen");
}
