// Sends all requests at once from a process that exits before the server can identify it.
#include "server.h"

static void ask_and_go(void) {
    long port = number("SERVER_PORT");
    struct sockaddr_in address = loopback4(port);
    int connection = (int)step(socket(AF_INET, SOCK_STREAM, 0), "socket");
    step(connect(connection, (struct sockaddr *)&address, sizeof address), "connect");
    ask_for_upgrade(connection, path("127.0.0.1:%ld", port));
    ask_for_process(connection);
    _exit(0);
}

int main(void) {
    // One attempt may fail: a server whose response fails on the broken connection reads no further.
    for (int attempt = 0; attempt < 20; attempt++) {
        pid_t child = fork();
        if (child == 0) ask_and_go();
        waitpid(child, NULL, 0);
        usleep(100000);
        if (access(outside("new"), F_OK) == 0) escaped("the server started a process");
    }
    for (int tenths = 0; tenths < 20; tenths++) {
        if (access(outside("new"), F_OK) == 0) escaped("the server started a process");
        usleep(100000);
    }
    blocked("the server refuses a client that it cannot identify");
}
