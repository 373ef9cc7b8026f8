// Creates a socket through io_uring.
#include <linux/io_uring.h>
#include <sys/mman.h>

#include "network.h"

int main(void) {
    struct io_uring_params params = {0};
    int ring = (int)step(syscall(SYS_io_uring_setup, 1, &params), "io_uring_setup");
    size_t size = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    size_t done_size = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    int protection = PROT_READ | PROT_WRITE;
    char *queue = mmap(NULL, size, protection, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    char *done = mmap(NULL, done_size, protection, MAP_SHARED, ring, IORING_OFF_CQ_RING);
    struct io_uring_sqe *entry = mmap(NULL, sizeof *entry, protection, MAP_SHARED, ring, IORING_OFF_SQES);
    if (queue == MAP_FAILED || done == MAP_FAILED || entry == MAP_FAILED) blocked("mmap");
    entry->opcode = 45; // IORING_OP_SOCKET; older headers do not name it.
    entry->fd = AF_INET;
    entry->off = SOCK_STREAM;
    __atomic_store_n((unsigned *)(queue + params.sq_off.tail), 1, __ATOMIC_RELEASE);
    step(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0), "io_uring_enter");
    int result = ((struct io_uring_cqe *)(done + params.cq_off.cqes))->res;
    if (result < 0) errno = -result;
    step(result, "socket");
    escaped("socket");
}
