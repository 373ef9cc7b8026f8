// Creates the missing `.codex` as a file.
#include "attempt.h"

int main(void) {
    int file = open(".codex", O_WRONLY | O_CREAT | O_EXCL, 0600);
    write_through(file, "open");
}
