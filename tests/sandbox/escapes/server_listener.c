// Connects to the server that made the sandbox and asks it to start a process without one.
#include "server.h"

int main(void) { ask_server_at_port(); }
