// Changes the owner of a file outside (to who it is already: allowed to its owner, and it would show in the ctime).
#include "attempt.h"

int main(void) {
    step(chown(outside("file"), geteuid(), getegid()), "chown");
    escaped("chown");
}
