// Creates a BPF map in the kernel.
#include <linux/bpf.h>

#include "attempt.h"

int main(void) {
    union bpf_attr attributes = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4, .max_entries = 1};
    step(syscall(SYS_bpf, BPF_MAP_CREATE, &attributes, sizeof attributes), "bpf");
    escaped("bpf");
}
