// Reads its own memory with the call that reads other processes.
#include <sys/uio.h>

#include "attempt.h"

int main(void) {
    char from = 'x', to = 0;
    struct iovec here = {&to, 1}, there = {&from, 1};
    step(process_vm_readv(getpid(), &here, 1, &there, 1, 0), "process_vm_readv");
    escaped("process_vm_readv");
}
