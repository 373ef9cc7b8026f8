// Creates a hard link to a denied file and reads the link.
#include "attempt.h"

int main(void) {
    step(link("directory/secret", "alias"), "link");
    read_secret(open("alias", O_RDONLY), "open the alias");
}
