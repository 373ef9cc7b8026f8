// Sets the time zone of the kernel (to UTC, its usual value: harmless).
#include <sys/time.h>

#include "attempt.h"

int main(void) {
    struct timezone utc = {0, 0};
    step(syscall(SYS_settimeofday, NULL, &utc), "settimeofday");
    escaped("settimeofday");
}
