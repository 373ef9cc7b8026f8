// Connects to an abstract socket of another process.
#include "network.h"

int main(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int len = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "exec-server-victim-%ld", number("VICTIM"));
    int connection = (int)step(socket(AF_UNIX, SOCK_STREAM, 0), "socket");
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);
    step(connect(connection, (struct sockaddr *)&address, size), "connect");
    escaped("connect");
}
