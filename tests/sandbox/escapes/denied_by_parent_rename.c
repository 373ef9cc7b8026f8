// Renames the directory of a denied file, so that the path in the rule no longer matches.
#include "attempt.h"

int main(void) {
    step(rename("directory", "renamed"), "rename");
    read_secret(open("renamed/secret", O_RDONLY), "open");
}
