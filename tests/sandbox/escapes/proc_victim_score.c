// Makes another process the first that the OOM killer kills.
#include "attempt.h"

int main(void) {
    int score = (int)step(open(victim("oom_score_adj"), O_WRONLY), "open");
    step(write(score, "1000", 4), "write");
    escaped("write");
}
