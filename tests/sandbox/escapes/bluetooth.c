// Creates a Bluetooth socket.
#include "network.h"

int main(void) {
    step(socket(AF_BLUETOOTH, SOCK_RAW, 1), "socket");
    escaped("socket");
}
