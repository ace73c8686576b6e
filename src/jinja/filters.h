/* The filters of sequences, for the table of all filters. */
#ifndef QN_JINJA_FILTERS_H
#define QN_JINJA_FILTERS_H

#include "jinja/run.h"

const qn_builtin *qn_find_sequence_filter(const char *name, size_t length);

/* qn_value_count - the number of characters of a string, or of items of a sequence, as the filter length counts
 * them. */
qn_status qn_value_count(qn_run *r, const qn_value *value, int64_t *n);

#endif
