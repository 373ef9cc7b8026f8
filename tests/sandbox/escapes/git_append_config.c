// Appends to the git configuration, which can name programs to run.
#include "attempt.h"

int main(void) { write_through(open(".git/config", O_WRONLY | O_APPEND), "open"); }
