// Creates a hard link in the workspace to a file outside and writes to the link.
#include "attempt.h"

int main(void) {
    step(link(outside("file"), "alias"), "link");
    write_through(open("alias", O_WRONLY), "open the alias");
}
