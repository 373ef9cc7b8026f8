// Gives a file outside a second name in the workspace and writes to that.
#include "attempt.h"

int main(void) {
    step(link(outside("file"), "alias"), "link");
    write_through(open("alias", O_WRONLY), "open the alias");
}
