// Gives a denied file another name and reads that.
#include "attempt.h"

int main(void) {
    step(rename("directory/secret", "renamed"), "rename");
    read_secret(open("renamed", O_RDONLY), "open the new name");
}
