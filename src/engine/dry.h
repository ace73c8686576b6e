/* The breakers of DRY, which penalises repetitions (qn_sampling.dry_breakers), in the form that samplers use. They are
 * constant after creation. */
#ifndef QN_ENGINE_DRY_H
#define QN_ENGINE_DRY_H

#include "plan/sampling.h"

/* qn_dry_check - QN_ERR_INVALID if qn_sampling.dry_breakers are malformed. */
qn_status qn_dry_check(const qn_token *given, size_t n);

/* qn_dry_create - Creates breakers from n tokens and -1s that qn_dry_check accepted; they are copied. Free the breakers
 * with qn_dry_free. */
qn_status qn_dry_create(const qn_token *given, size_t n, qn_sample_breakers **out);

/* qn_dry_free - Frees breakers. NULL is allowed. */
void qn_dry_free(qn_sample_breakers *breakers);

/* qn_dry_bytes - Returns the bytes of memory of breakers; 0 for NULL. */
size_t qn_dry_bytes(const qn_sample_breakers *breakers);

#endif
