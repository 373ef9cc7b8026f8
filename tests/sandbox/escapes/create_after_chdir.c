// Changes its working directory to one outside the sandbox and creates a file by its bare name.
#include "attempt.h"

int main(void) {
    step(chdir(variable("OUTSIDE")), "chdir");
    create("new");
}
