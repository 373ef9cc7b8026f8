// Creates a socket for ICMP echo requests.
#include "network.h"

int main(void) {
    unsigned first, last;
    FILE *setting = fopen("/proc/sys/net/ipv4/ping_group_range", "r");
    if (!setting || fscanf(setting, "%u %u", &first, &last) != 2) impossible("no setting");
    if (getegid() < first || getegid() > last) impossible("this group may not create ping sockets");
    step(socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP), "socket");
    escaped("socket");
}
