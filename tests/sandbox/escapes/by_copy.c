// Creates a file outside from a copy of this program in the workspace.
#include <sys/sendfile.h>

#include "attempt.h"

int main(int count, char **arguments) {
    (void)arguments;
    if (count > 1) create(outside("new"));
    int from = open("/proc/self/exe", O_RDONLY);
    int to = (int)prepare(open("copy", O_WRONLY | O_CREAT, 0700), "open in the workspace");
    while (sendfile(to, from, NULL, 1 << 20) > 0) continue;
    close(to);
    step(execl("./copy", "copy", "again", NULL), "execl");
}
