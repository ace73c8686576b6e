/* The methods of str, and the functions that filters share with them. */
#ifndef QN_JINJA_STRINGS_H
#define QN_JINJA_STRINGS_H

#include "jinja/run.h"

typedef enum qn_case_change {
    QN_CASE_UPPER,
    QN_CASE_LOWER,
    QN_CASE_TITLE,
    QN_CASE_CAPITALIZE,
    QN_CASE_SWAP
} qn_case_change;

/* All take a string; the results keep the origins of its bytes. */
qn_status qn_change_case(qn_run *r, const qn_value *self, qn_case_change change, qn_value *out);

/* qn_strip - removes white space, or any of `characters` (NULL or none: white space), on the left and on the right. */
qn_status qn_strip(qn_run *r, const qn_value *self, const qn_value *characters, bool left, bool right, qn_value *out);

/* qn_replace - replaces the first `most` occurrences of `old`; all if `most` is negative. */
qn_status qn_replace(qn_run *r, const qn_value *self, const qn_value *old, const qn_value *with, int64_t most,
                     qn_value *out);

qn_status qn_split_lines(qn_run *r, const qn_value *self, bool keep_ends, qn_value *out);

/* qn_is_letter_or_digit - letters and numbers of any kind, as isalnum(). */
bool qn_is_letter_or_digit(uint32_t code);

/* qn_decimal_value - the value of a decimal digit of any script, or -1. */
int qn_decimal_value(uint32_t code);

/* qn_find_string_method - finds any method. */
const qn_builtin *qn_find_string_method(const char *name, size_t length);

/* qn_find_search_method - finds a method that splits, joins, searches or replaces. qn_find_string_method calls it. */
const qn_builtin *qn_find_search_method(const char *name, size_t length);

#endif
