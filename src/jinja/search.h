/* Finds a text in others in linear time: templates may search for anything. */
#ifndef QN_JINJA_SEARCH_H
#define QN_JINJA_SEARCH_H

#include "jinja/run.h"

/* A prepared search. `what` and `borders` are borrowed: the text, and memory of the run's arena. */
typedef struct qn_search {
    const char *what;
    size_t length;
    const uint32_t *borders; /* [length]; NULL for a short text */
    bool backward;           /* for qn_search_last */
} qn_search;

/* Result without a match. */
#define QN_NOWHERE SIZE_MAX

/* qn_search_init - prepares the search for a text, which must outlive it. It counts the steps of the preparation.
 * The caller counts those of the search: one for QN_READ_PER_STEP bytes searched, and one for each match. */
qn_status qn_search_init(qn_run *r, const qn_jinja_string *what, bool backward, qn_search *out);

/* qn_search_first - the offset of the first match in data [length], or QN_NOWHERE. An empty text matches at the
 * beginning. */
size_t qn_search_first(const qn_search *s, const char *data, size_t length);

/* qn_search_last - the offset of the last match, or QN_NOWHERE. An empty text matches at the end. */
size_t qn_search_last(const qn_search *s, const char *data, size_t length);

#endif
