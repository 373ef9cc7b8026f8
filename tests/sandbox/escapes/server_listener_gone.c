// Says all at once from a process that is gone before the server can ask who it was.
#include "server.h"

int main(void) {
    pid_t child = fork();
    if (child == 0) {
        long port = number("SERVER_PORT");
        struct sockaddr_in address = loopback4(port);
        int connection = (int)step(socket(AF_INET, SOCK_STREAM, 0), "socket");
        step(connect(connection, (struct sockaddr *)&address, sizeof address), "connect");
        ask_for_upgrade(connection, path("127.0.0.1:%ld", port));
        ask_for_process(connection);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    // What the server has accepted it does at once.
    for (int tenths = 0; tenths < 20; tenths++) {
        if (access(outside("new"), F_OK) == 0) escaped("the server started a process");
        usleep(100000);
    }
    blocked("the server does not believe who cannot be found");
}
