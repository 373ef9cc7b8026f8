// Opens a file of `.git` for reading and then, through /proc/self/fd, for writing.
#include "attempt.h"

int main(void) {
    int reading = (int)step(open(".git/config", O_RDONLY), "open for reading");
    write_through(open(path("/proc/self/fd/%d", reading), O_WRONLY), "reopen");
}
