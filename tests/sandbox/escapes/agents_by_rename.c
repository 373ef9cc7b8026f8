// Prepares a directory and renames it to the missing name `.agents`.
#include "attempt.h"

int main(void) {
    step(rename("directory", ".agents"), "rename");
    escaped("rename");
}
