// Gives a file of `.git` a second name that may be written.
#include "attempt.h"

int main(void) {
    step(link(".git/config", "alias"), "link");
    write_through(open("alias", O_WRONLY), "open the alias");
}
