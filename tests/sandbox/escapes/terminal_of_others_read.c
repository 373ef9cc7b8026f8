// Opens the terminal of another process to read what is typed there.
#include "attempt.h"

int main(void) {
    step(open(variable("VICTIM_TERMINAL"), O_RDONLY | O_NOCTTY | O_NONBLOCK), "open");
    escaped("open");
}
