// Creates a file outside by creat.
#include "attempt.h"

int main(void) { write_through(creat(outside("new"), 0600), "creat"); }
