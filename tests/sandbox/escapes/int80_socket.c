// Creates a socket with a 32-bit system call.
#include "network.h"

int main(void) {
    int80_or_impossible();
    long result = int80(359, AF_INET, SOCK_STREAM, 0);
    if (result < 0) errno = (int)-result;
    step(result, "socket");
    escaped("socket");
}
