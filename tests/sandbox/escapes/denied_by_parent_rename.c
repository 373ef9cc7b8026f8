// Renames the directory of a denied file, so that the rule's path is another.
#include "attempt.h"

int main(void) {
    step(rename("directory", "renamed"), "rename");
    read_secret(open("renamed/secret", O_RDONLY), "open");
}
