/* Random bytes by the system's generator. */
#include "base/random.h"

#include <windows.h>
/* after windows.h, whose types it needs */
#include <bcrypt.h>

bool qn_random_bytes(void *bytes, size_t n)
{
    return BCryptGenRandom(NULL, bytes, (ULONG)n, BCRYPT_USE_SYSTEM_PREFERRED_RNG) == 0;
}
