// System calls of 32-bit programs, made by a 64-bit program.
#ifndef INT80_H
#define INT80_H

#include "attempt.h"

#ifdef __x86_64__
static inline long int80(long call, long first, long second, long third) {
    int result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(call), "b"(first), "c"(second), "d"(third) : "memory");
    return result;
}
#else
static inline long int80(long call, long first, long second, long third) {
    (void)call, (void)first, (void)second, (void)third;
    return -ENOSYS;
}
#endif

static inline void ignore(int signal) { (void)signal; _exit(IMPOSSIBLE); }

// On a kernel without support for 32-bit programs the instruction faults.
static inline void int80_or_impossible(void) {
#ifndef __x86_64__
    impossible("another architecture");
#endif
    signal(SIGSEGV, ignore);
}

#endif
