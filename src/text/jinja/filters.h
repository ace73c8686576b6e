/* The filters of sequences, which the table of all filters refers to. */
#ifndef QN_TEXT_JINJA_FILTERS_H
#define QN_TEXT_JINJA_FILTERS_H

#include "text/jinja/run.h"

const qn_builtin *qn_find_sequence_filter(const char *name, size_t length);

#endif
