// Changes the times of a file outside with the oldest calls for it.
#include <utime.h>

#include "attempt.h"

int main(void) {
#ifdef SYS_utime
    struct utimbuf times = {1, 1};
    if (syscall(SYS_utime, outside("file"), &times) == 0) escaped("utime");
    if (syscall(SYS_utimes, outside("file"), NULL) == 0) escaped("utimes");
    if (syscall(SYS_futimesat, AT_FDCWD, outside("file"), NULL) == 0) escaped("futimesat");
    blocked("utime, utimes and futimesat");
#else
    impossible("another architecture");
#endif
}
