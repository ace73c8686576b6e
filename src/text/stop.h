/* Stop strings: finding the first of several strings in a text that comes in pieces, and telling how much of the text is safe
 * to show, because no stop string can begin in it any more. */
#ifndef QN_TEXT_STOP_H
#define QN_TEXT_STOP_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct qn_stop qn_stop;

/* qn_stop_create - look for strings[0..n), UTF-8 and terminated; n may be 0, and then all text is safe. The strings are copied.
 * QN_ERR_INVALID, with the string's place, for an empty one or one that is not UTF-8. Free with qn_stop_free. */
qn_status qn_stop_create(const char *const *strings, size_t n, qn_stop **out);
void qn_stop_free(qn_stop *stop);

/* qn_stop_feed - take the next characters of the text.
 *
 *   safe, n_safe  text that can be shown now, valid until the next call; it begins with what an earlier call held back
 *   hit           whether a stop string has appeared; what came before it is safe, it and all after it is dropped, and
 *                 later calls give nothing more
 *
 * Of several that end at the same byte the longest counts; otherwise the one that ends first. Time is linear in the text. */
qn_status qn_stop_feed(qn_stop *stop, const char *text, size_t length, const char **safe, size_t *n_safe, bool *hit);

/* qn_stop_flush - the end of the text: what was held back is safe, too. Afterwards the search can begin anew, also after a
 * hit. */
qn_status qn_stop_flush(qn_stop *stop, const char **safe, size_t *n_safe);

#endif
