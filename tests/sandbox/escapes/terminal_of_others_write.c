// Writes to the terminal of another process.
#include "attempt.h"

int main(void) { write_through(open(variable("VICTIM_TERMINAL"), O_WRONLY | O_NOCTTY), "open"); }
