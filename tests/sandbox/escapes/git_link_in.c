// Gives a file of the workspace a second name as a hook.
#include "attempt.h"

int main(void) {
    step(link("file", ".git/hooks/pre-commit"), "link");
    escaped("link");
}
