/* The secret of the process, and XXH3 with it. A seed alone is not enough: for short inputs XXH3 mixes it with
 * publicly known words. */
#include "base/keyed_hash.h"

#include "base/random.h"
#include "base/splitmix.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

enum { SECRET_BYTES = 192, SECRET_WORDS = SECRET_BYTES / 8, WORDS = 3 };

static uint64_t secret[SECRET_WORDS + WORDS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Fills the secret without random numbers from the system, from the values that a stranger knows least. */
static void guess_secret(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t state = (uint64_t)now.tv_nsec << 32 ^ (uint64_t)now.tv_sec ^ (uint64_t)getpid() << 16 ^ (uintptr_t)&now ^
                     (uintptr_t)secret;
    for (size_t i = 0; i < SECRET_WORDS + WORDS; i++)
        secret[i] = qn_splitmix(&state);
}

static void make_secret(void)
{
    if (!qn_random_bytes(secret, sizeof secret))
        guess_secret();
}

static const uint64_t *get_secret(void)
{
    pthread_once(&once, make_secret);
    return secret;
}

uint64_t qn_keyed_hash(const void *data, size_t length)
{
    return XXH3_64bits_withSecret(data, length, get_secret(), SECRET_BYTES);
}

uint64_t qn_keyed_hash_with(const void *data, size_t length, uint64_t number)
{
    const uint64_t both[] = { qn_keyed_hash(data, length), number };
    return qn_keyed_hash(both, sizeof both);
}

qn_keyed_words qn_keyed_words_get(void)
{
    const uint64_t *words = get_secret() + SECRET_WORDS;
    return (qn_keyed_words){ words[0] | 1, words[1] | 1, words[2] };
}

qn_hash128 qn_keyed_hash128(const void *data, size_t length)
{
    const XXH128_hash_t hash = XXH3_128bits_withSecret(data, length, get_secret(), SECRET_BYTES);
    return (qn_hash128){ hash.low64, hash.high64 };
}
