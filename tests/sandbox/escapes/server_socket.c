// Connects to the Unix socket of the server that made the sandbox and asks it to start a process without one.
#include "server.h"

int main(void) {
    struct sockaddr_un address = unix_path(variable("SERVER_SOCKET"));
    int connection = (int)step(socket(AF_UNIX, SOCK_STREAM, 0), "socket");
    step(connect(connection, (struct sockaddr *)&address, sizeof address), "connect");
    ask_server(connection, "localhost");
}
