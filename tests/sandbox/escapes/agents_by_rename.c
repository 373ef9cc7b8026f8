// Prepares a directory and gives it the missing name `.agents`.
#include "attempt.h"

int main(void) {
    step(rename("directory", ".agents"), "rename");
    escaped("rename");
}
