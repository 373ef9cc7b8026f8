// Reads the memory of another process.
#include <sys/uio.h>

#include "attempt.h"

int main(void) {
    char text[9] = {0};
    struct iovec here = {text, 8}, there = {(void *)number("VICTIM_ADDRESS"), 8};
    step(process_vm_readv((pid_t)number("VICTIM"), &here, 1, &there, 1, 0), "process_vm_readv");
    if (strcmp(text, "treasure") != 0) impossible("unexpected memory content");
    escaped("process_vm_readv");
}
