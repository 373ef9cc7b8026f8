// Creates a fanotify group, which could watch and block the file accesses of every process.
#include <sys/fanotify.h>

#include "attempt.h"

int main(void) {
    step(fanotify_init(FAN_CLASS_CONTENT, O_RDONLY), "fanotify_init");
    escaped("fanotify_init");
}
