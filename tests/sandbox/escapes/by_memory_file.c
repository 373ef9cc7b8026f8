// Creates a file outside from a copy of this program that exists only in memory.
#include <sys/mman.h>
#include <sys/sendfile.h>

#include "attempt.h"

int main(int count, char **arguments) {
    (void)arguments;
    if (count > 1) create(outside("new"));
    int from = open("/proc/self/exe", O_RDONLY), to = memfd_create("copy", 0);
    while (sendfile(to, from, NULL, 1 << 20) > 0) continue;
    char *again[] = {"copy", "again", NULL};
    step(fexecve(to, again, environ), "fexecve");
}
