// Sets an extended attribute on a file outside with the newest call for it.
#include "attempt.h"

int main(void) {
    struct {
        uint64_t value;
        uint32_t size, flags;
    } arguments = {(uintptr_t) "x", 1, 0};
    step(syscall(463, AT_FDCWD, outside("file"), 0, "user.escaped", &arguments, sizeof arguments), "setxattrat");
    escaped("setxattrat");
}
