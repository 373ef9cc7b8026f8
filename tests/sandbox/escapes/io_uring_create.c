// Creates a file outside through io_uring, where the kernel opens it.
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
    entry->opcode = IORING_OP_OPENAT;
    entry->fd = AT_FDCWD;
    entry->addr = (uintptr_t)outside("new");
    entry->open_flags = O_WRONLY | O_CREAT;
    entry->len = 0600;
    __atomic_store_n((unsigned *)(queue + params.sq_off.tail), 1, __ATOMIC_RELEASE);
    step(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0), "io_uring_enter");
    step(access(outside("new"), F_OK), "access to the new file");
    escaped("io_uring");
}
