// Creates a file outside through the shell.
#include "attempt.h"

int main(void) {
    if (system("echo escaped 2> /dev/null > \"$OUTSIDE/new\"") == 0) escaped("the shell");
    blocked("the shell");
}
