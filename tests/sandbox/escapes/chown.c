// Changes the owner of a file outside (to its current owner: allowed to the owner, and visible in the ctime).
#include "attempt.h"

int main(void) {
    step(chown(outside("file"), geteuid(), getegid()), "chown");
    escaped("chown");
}
