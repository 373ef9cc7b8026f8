// Renames a denied file and reads it under the new name.
#include "attempt.h"

int main(void) {
    step(rename("directory/secret", "renamed"), "rename");
    read_secret(open("renamed", O_RDONLY), "open the new name");
}
