// Lists a denied directory.
#include <dirent.h>

#include "attempt.h"

int main(void) {
    DIR *directory = opendir("denied");
    if (!directory) blocked("opendir");
    for (struct dirent *entry; (entry = readdir(directory));)
        if (strcmp(entry->d_name, "secret") == 0) escaped("readdir");
    blocked("the directory is empty");
}
