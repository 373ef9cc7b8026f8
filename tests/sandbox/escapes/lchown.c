// Changes the owner of a file outside with the call that does not follow symlinks (to its current owner: visible in
// the ctime).
#include "attempt.h"

int main(void) {
    step(lchown(outside("file"), geteuid(), getegid()), "lchown");
    escaped("lchown");
}
