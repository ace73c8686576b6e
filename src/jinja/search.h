/* Finds a text in others, in time that grows with their lengths alone: templates may search what they like. */
#ifndef QN_JINJA_SEARCH_H
#define QN_JINJA_SEARCH_H

#include "jinja/run.h"

typedef struct qn_search {
    const char *what;
    size_t length;
    const uint32_t *borders; /* [length]; NULL: the text is short */
    bool backward;           /* for qn_search_last */
} qn_search;

/* No place. */
#define QN_NOWHERE SIZE_MAX

/* qn_search_init - prepare the search of a text, which must outlive it. Counts the steps of that, not those of searching:
 * one for QN_READ_PER_STEP bytes that are searched, and one for each place that is found. */
qn_status qn_search_init(qn_run *r, const qn_jinja_string *what, bool backward, qn_search *out);

/* qn_search_first, qn_search_last - where the text begins in data [length], or QN_NOWHERE. An empty one is at the beginning,
 * and at the end. */
size_t qn_search_first(const qn_search *s, const char *data, size_t length);
size_t qn_search_last(const qn_search *s, const char *data, size_t length);

#endif
