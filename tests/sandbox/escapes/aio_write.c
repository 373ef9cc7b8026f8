// Writes to a file outside through the old asynchronous interface.
#include <linux/aio_abi.h>

#include "attempt.h"

int main(void) {
    aio_context_t context = 0;
    int file = (int)step(open(outside("file"), O_WRONLY), "open");
    step(syscall(SYS_io_setup, 1, &context), "io_setup");
    struct iocb block = {.aio_lio_opcode = IOCB_CMD_PWRITE,
                         .aio_fildes = (unsigned)file,
                         .aio_buf = (uintptr_t) "!",
                         .aio_nbytes = 1};
    struct iocb *blocks[] = {&block};
    step(syscall(SYS_io_submit, context, 1, blocks), "io_submit");
    escaped("io_submit");
}
