// Creates a file in a denied directory.
#include "attempt.h"

int main(void) { create("denied/new"); }
