// Moves a file of the workspace into `.git`.
#include "attempt.h"

int main(void) {
    step(rename("file", ".git/hooks/post-checkout"), "rename");
    escaped("rename");
}
