// Gives the kernel advice about its own memory, with the call for the memory of other processes.
#include <sys/mman.h>
#include <sys/uio.h>

#include "attempt.h"

int main(void) {
    int process = (int)step(syscall(SYS_pidfd_open, getpid(), 0), "pidfd_open");
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct iovec range = {page, 4096};
    // MADV_COLD
    step(syscall(SYS_process_madvise, process, &range, 1, 20, 0), "process_madvise");
    escaped("process_madvise");
}
