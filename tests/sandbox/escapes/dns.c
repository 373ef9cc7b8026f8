// Resolves a name by querying a DNS server.
#include <netdb.h>
#include <resolv.h>

#include "network.h"

int main(void) {
    struct __res_state state = {0};
    unsigned char answer[512];
    res_ninit(&state);
    state.nscount = 1;
    state.nsaddr_list[0] = loopback4(number("UDP4_PORT"));
    state.retry = 1;
    // The DNS server of the tests knows no names, but it responds.
    if (res_nquery(&state, "escaped.example", ns_c_in, ns_t_a, answer, sizeof answer) < 0 &&
        state.res_h_errno != HOST_NOT_FOUND)
        blocked("res_nquery");
    escaped("res_nquery");
}
