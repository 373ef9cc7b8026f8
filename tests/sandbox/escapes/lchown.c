// Changes the owner of a file outside by the call that does not follow symlinks (to who it is: it shows in the ctime).
#include "attempt.h"

int main(void) {
    step(lchown(outside("file"), geteuid(), getegid()), "lchown");
    escaped("lchown");
}
