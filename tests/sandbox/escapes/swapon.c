// Uses a file as swap. (It is missing: harmless.)
#include "attempt.h"

int main(void) { judge_harmless(syscall(SYS_swapon, "/nonexistent", 0), ENOENT, ENOENT, "swapon"); }
