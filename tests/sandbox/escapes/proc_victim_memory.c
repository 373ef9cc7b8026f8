// Writes to the memory of another process through /proc.
#include "attempt.h"

int main(void) {
    int memory = (int)step(open(victim("mem"), O_RDWR), "open");
    step(pwrite(memory, "TREASURE", 8, number("VICTIM_ADDRESS")), "write");
    escaped("write");
}
