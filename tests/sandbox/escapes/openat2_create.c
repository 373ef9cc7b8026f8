// Creates a file outside with openat2.
#include <linux/openat2.h>

#include "attempt.h"

int main(void) {
    struct open_how how = {.flags = O_WRONLY | O_CREAT, .mode = 0600};
    write_through(syscall(SYS_openat2, AT_FDCWD, outside("new"), &how, sizeof how), "openat2");
}
