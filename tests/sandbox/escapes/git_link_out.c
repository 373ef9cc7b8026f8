// Creates a hard link to a file of `.git` in a writable directory.
#include "attempt.h"

int main(void) {
    step(link(".git/config", "alias"), "link");
    write_through(open("alias", O_WRONLY), "open the alias");
}
