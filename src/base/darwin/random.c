/* Random bytes by getentropy, which gives up to 256 bytes whole. */
#include "base/random.h"

#include <sys/random.h>

bool qn_random_bytes(void *bytes, size_t n)
{
    return getentropy(bytes, n) == 0;
}
