// Creates the missing `.codex` as a directory and a file in it.
#include "attempt.h"

int main(void) {
    mkdir(".codex", 0700);
    create(".codex/config.toml");
}
