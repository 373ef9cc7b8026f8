// Turns on process accounting. (The file is missing: harmless.)
#include "attempt.h"

int main(void) { judge_harmless(acct("/nonexistent"), ENOENT, ENOENT, "acct"); }
