// Creates a file outside from a script with an interpreter line.
#include "attempt.h"

int main(void) {
    int script = (int)prepare(open("script", O_WRONLY | O_CREAT, 0700), "open in the workspace");
    dprintf(script, "#!/bin/sh\necho escaped > \"$OUTSIDE/new\" && exit 0\nexit %d\n", BLOCKED);
    close(script);
    step(execl("./script", "script", NULL), "execl");
}
