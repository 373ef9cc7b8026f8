// Opens a file that another process has open for writing.
#include "attempt.h"

int main(void) {
    write_through(open(victim(path("fd/%ld", number("VICTIM_DESCRIPTOR"))), O_WRONLY), "open");
}
