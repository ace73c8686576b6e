/* Random bytes by getrandom, which gives up to 256 bytes whole and uninterrupted. */
#include "base/random.h"

#include <sys/random.h>
#include <sys/types.h>

bool qn_random_bytes(void *bytes, size_t n)
{
    return getrandom(bytes, n, 0) == (ssize_t)n;
}
