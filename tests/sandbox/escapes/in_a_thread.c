// Creates a file outside from a thread, after the main thread has ended.
#include <pthread.h>

#include "attempt.h"

static void *attempt(void *main_thread) {
    pthread_join(*(pthread_t *)main_thread, NULL);
    create(outside("new"));
}

int main(void) {
    static pthread_t main_thread;
    pthread_t thread;
    main_thread = pthread_self();
    if (pthread_create(&thread, NULL, attempt, &main_thread) != 0) impossible("pthread_create");
    pthread_exit(NULL);
}
