// Creates a file outside from another program that it executes.
#include "attempt.h"

int main(int count, char **arguments) {
    if (count > 1) create(outside("new"));
    char *again[] = {arguments[0], "again", NULL};
    step(execv(arguments[0], again), "execv");
}
