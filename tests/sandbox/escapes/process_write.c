// Writes to the memory of another process.
#include <sys/uio.h>

#include "attempt.h"

int main(void) {
    struct iovec here = {"TREASURE", 8}, there = {(void *)number("VICTIM_ADDRESS"), 8};
    step(process_vm_writev((pid_t)number("VICTIM"), &here, 1, &there, 1, 0), "process_vm_writev");
    escaped("process_vm_writev");
}
