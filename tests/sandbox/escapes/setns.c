// Enters a namespace by a descriptor (its own: harmless).
#include "attempt.h"

int main(void) {
    int namespace = (int)step(open("/proc/self/ns/ipc", O_RDONLY), "open");
    step(setns(namespace, CLONE_NEWIPC), "setns");
    escaped("setns");
}
