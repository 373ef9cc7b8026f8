// Creates a FIFO outside.
#include "attempt.h"

int main(void) {
    step(mkfifo(outside("new"), 0600), "mkfifo");
    escaped("mkfifo");
}
