/* The rule by which a client may take more of a shared resource. */
#include "base/share.h"

#include <stdint.h>

static bool fits(size_t limit, size_t used, size_t n)
{
    return used <= limit && n <= limit - used;
}

size_t qn_share_part(const qn_share *share)
{
    return share->n_clients < share->most ? share->most / share->n_clients : 1;
}

bool qn_share_allows(const qn_share *share, size_t n)
{
    const size_t all = share->most <= SIZE_MAX / share->factor ? share->most * share->factor : SIZE_MAX;
    return fits(share->most, share->used, n) ||
           (fits(qn_share_part(share), share->own, n) && fits(all, share->used, n));
}
