// Maps a denied file.
#include <sys/mman.h>

#include "attempt.h"

int main(void) {
    int file = (int)step(open("directory/secret", O_RDONLY), "open");
    char *content = mmap(NULL, 5, PROT_READ, MAP_PRIVATE, file, 0);
    if (content == MAP_FAILED) {
        // `step` would take EINVAL for a missing feature; here it means that the file is covered.
        if (errno == EINVAL) errno = EACCES;
        step(-1, "mmap");
    }
    if (memcmp(content, "hush\n", 5) == 0) escaped("mmap");
    blocked("the content differs");
}
