// Makes the kernel write a file of the workspace into one outside.
#include <sys/sendfile.h>

#include "attempt.h"

int main(void) {
    int from = open("file", O_RDONLY), to = (int)step(open(outside("file"), O_WRONLY), "open");
    step(sendfile(to, from, NULL, 4), "sendfile");
    escaped("sendfile");
}
