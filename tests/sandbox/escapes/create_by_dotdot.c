// Creates a file outside by a relative path.
#include "attempt.h"

int main(void) { create("directory/../../outside/new"); }
