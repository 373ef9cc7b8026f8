// Requests direct access to hardware ports.
#include "attempt.h"

int main(void) {
#ifdef __x86_64__
    step(syscall(SYS_ioperm, 0x80, 1, 1), "ioperm");
    escaped("ioperm");
#else
    impossible("another architecture");
#endif
}
