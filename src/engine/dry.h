/* Breakers of DRY, as requests have them. */
#ifndef QN_ENGINE_DRY_H
#define QN_ENGINE_DRY_H

#include "plan/sampling.h"

/* qn_dry_check - whether qn_sampling.dry_breakers are well-formed. */
qn_status qn_dry_check(const qn_token *given, size_t n);

/* qn_dry_create - the breakers of a request, of n checked tokens and -1s, which are copied. qn_dry_free - NULL is
 * allowed.
 * qn_dry_bytes - their memory. */
qn_status qn_dry_create(const qn_token *given, size_t n, qn_sample_breakers **out);
void qn_dry_free(qn_sample_breakers *breakers);
size_t qn_dry_bytes(const qn_sample_breakers *breakers);

#endif
