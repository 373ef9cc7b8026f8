// Lets the kernel write down every process that ends. (The file is missing: harmless.)
#include "attempt.h"

int main(void) { judge_harmless(acct("/nonexistent"), ENOENT, ENOENT, "acct"); }
