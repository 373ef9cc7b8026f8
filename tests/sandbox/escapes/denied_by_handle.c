// Gets the handle of a denied file and opens the file by it.
#include "attempt.h"

int main(void) {
    struct {
        struct file_handle header;
        unsigned char bytes[MAX_HANDLE_SZ];
    } handle = {.header.handle_bytes = MAX_HANDLE_SZ};
    int mount_id, base = open(".", O_RDONLY);
    if (name_to_handle_at(AT_FDCWD, "directory/secret", &handle.header, &mount_id, 0) < 0) {
        if (errno == EOPNOTSUPP) impossible("name_to_handle_at");
        blocked("name_to_handle_at");
    }
    read_secret(open_by_handle_at(base, &handle.header, O_RDONLY), "open_by_handle_at");
}
