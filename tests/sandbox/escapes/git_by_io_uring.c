// Removes a file of `.git` through io_uring.
#include <linux/io_uring.h>
#include <sys/mman.h>

#include "attempt.h"

int main(void) {
    struct io_uring_params params = {0};
    int ring = (int)step(syscall(SYS_io_uring_setup, 1, &params), "io_uring_setup");
    size_t size = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    int protection = PROT_READ | PROT_WRITE;
    char *queue = mmap(NULL, size, protection, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entry = mmap(NULL, sizeof *entry, protection, MAP_SHARED, ring, IORING_OFF_SQES);
    if (queue == MAP_FAILED || entry == MAP_FAILED) blocked("mmap");
    entry->opcode = IORING_OP_UNLINKAT;
    entry->fd = AT_FDCWD;
    entry->addr = (uintptr_t) ".git/HEAD";
    __atomic_store_n((unsigned *)(queue + params.sq_off.tail), 1, __ATOMIC_RELEASE);
    step(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0), "io_uring_enter");
    if (access(".git/HEAD", F_OK) == 0) blocked("the file is still there");
    escaped("io_uring");
}
