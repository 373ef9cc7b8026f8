// Renames a writable directory above the workspace and creates another workspace in its place.
#include "attempt.h"

int main(void) {
    char *upper = path("%s", variable("UPPER"));
    step(rename(upper, path("%s-moved", upper)), "rename");
    step(mkdir(upper, 0700), "mkdir");
    step(mkdir(path("%s/workspace", upper), 0700), "mkdir");
    step(mkdir(path("%s/workspace/.git", upper), 0700), "mkdir");
    create(path("%s/workspace/.git/config", upper));
}
