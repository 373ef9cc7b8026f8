// A minimal client that asks the server to start one process.
#ifndef SERVER_H
#define SERVER_H

#include "network.h"

static inline void say(int connection, const char *text) {
    // A text frame whose mask is zero.
    size_t len = strlen(text);
    unsigned char header[8] = {0x81, 0x80 | 126, (unsigned char)(len >> 8), (unsigned char)len};
    if (send(connection, header, sizeof header, MSG_NOSIGNAL) < 0) blocked("send");
    if (send(connection, text, len, MSG_NOSIGNAL) < 0) blocked("send");
}

static inline void ask_for_upgrade(int connection, const char *host) {
    char *request = path("GET / HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                         "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
                         host);
    if (send(connection, request, strlen(request), MSG_NOSIGNAL) < 0) blocked("send");
}

static inline void ask_for_process(int connection) {
    say(connection, "{\"id\":1,\"method\":\"initialize\",\"params\":{\"clientName\":\"escape\"}}");
    say(connection, "{\"method\":\"initialized\",\"params\":{}}");
    say(connection, path("{\"id\":2,\"method\":\"process/start\",\"params\":{\"processId\":\"escape\",\"env\":{},"
                         "\"cwd\":\"file:///\",\"tty\":false,\"arg0\":null,\"argv\":[\"/bin/mkdir\",\"%s\"]}}",
                         outside("new")));
}

static inline _Noreturn void ask_server(int connection, const char *host) {
    char answer[4096];
    ask_for_upgrade(connection, host);
    ssize_t len = recv(connection, answer, sizeof answer - 1, 0);
    if (len <= 0 || strncmp(answer, "HTTP/1.1 101", 12) != 0) blocked("the server refuses the upgrade");
    ask_for_process(connection);
    while (access(outside("new"), F_OK) != 0)
        if (recv(connection, answer, sizeof answer, 0) <= 0) blocked("the server closes the connection");
    escaped("the server started a process");
}

static inline _Noreturn void ask_server_at_port(void) {
    struct sockaddr_in address = loopback4(number("SERVER_PORT"));
    int connection = (int)step(socket(AF_INET, SOCK_STREAM, 0), "socket");
    step(connect(connection, (struct sockaddr *)&address, sizeof address), "connect");
    ask_server(connection, path("127.0.0.1:%ld", number("SERVER_PORT")));
}

#endif
