/* Waits by os_sync_wait_on_address, which macOS has since 14.4. Before, threads sleep on a condition that the addresses
 * of some values share. */
#include "base/wait_value.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>

typedef int wait_function(void *address, uint64_t value, size_t size, uint32_t flags);
typedef int wake_function(void *address, size_t size, uint32_t flags);

enum { PLACES = 64 };

static struct place {
    pthread_mutex_t lock;
    pthread_cond_t changed;
} places[PLACES];

static wait_function *wait_on_address;
static wake_function *wake_by_address;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_functions(void)
{
    wait_on_address = (wait_function *)dlsym(RTLD_DEFAULT, "os_sync_wait_on_address");
    wake_by_address = (wake_function *)dlsym(RTLD_DEFAULT, "os_sync_wake_by_address_all");
    for (int i = 0; i < PLACES; i++) {
        pthread_mutex_init(&places[i].lock, NULL);
        pthread_cond_init(&places[i].changed, NULL);
    }
}

static struct place *place_of(const atomic_uint *value)
{
    return &places[(uintptr_t)value / 64 % PLACES];
}

void qn_wait_value(atomic_uint *value, unsigned seen)
{
    pthread_once(&once, find_functions);
    if (wait_on_address && wake_by_address) {
        (void)wait_on_address(value, seen, sizeof *value, 0);
        return;
    }
    struct place *place = place_of(value);
    pthread_mutex_lock(&place->lock);
    if (atomic_load(value) == seen)
        pthread_cond_wait(&place->changed, &place->lock);
    pthread_mutex_unlock(&place->lock);
}

void qn_wake_value(atomic_uint *value)
{
    pthread_once(&once, find_functions);
    if (wait_on_address && wake_by_address) {
        (void)wake_by_address(value, sizeof *value, 0);
        return;
    }
    struct place *place = place_of(value);
    pthread_mutex_lock(&place->lock); /* a thread between its look and its sleep has the lock */
    pthread_cond_broadcast(&place->changed);
    pthread_mutex_unlock(&place->lock);
}
