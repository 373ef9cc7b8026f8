// Connects to the Unix socket of another process.
#include "network.h"

int main(void) {
    struct sockaddr_un address = unix_path(outside("stream"));
    int connection = (int)step(socket(AF_UNIX, SOCK_STREAM, 0), "socket");
    step(connect(connection, (struct sockaddr *)&address, sizeof address), "connect");
    escaped("connect");
}
