// Removes the placeholder for the missing `.agents` and creates a real `.agents`.
#include "attempt.h"

int main(void) {
    rmdir(".agents");
    unlink(".agents");
    chmod(".agents", 0700);
    rename(".agents", "removed");
    mkdir(".agents", 0700);
    create(".agents/config");
}
