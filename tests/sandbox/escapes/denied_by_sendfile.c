// Makes the kernel copy a denied file.
#include <sys/sendfile.h>

#include "attempt.h"

int main(void) {
    int from = (int)step(open("denied/secret", O_RDONLY), "open");
    int to = open("copy", O_RDWR | O_CREAT, 0600);
    step(sendfile(to, from, NULL, 5), "sendfile");
    lseek(to, 0, SEEK_SET);
    read_secret(to, "sendfile");
}
