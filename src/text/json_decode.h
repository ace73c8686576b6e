/* JSON that clients send, as they mean it: what Jansson refuses and JavaScript and Python print. */
#ifndef QN_TEXT_JSON_DECODE_H
#define QN_TEXT_JSON_DECODE_H

#include <jansson.h>
#include <stddef.h>

/* qn_json_decode - parse JSON.
 *
 *   text    [length] need not be terminated; unchanged
 *   flags   jansson's, beside JSON_ALLOW_NUL
 *   why     jansson's error, when the result is NULL; the code json_error_out_of_memory where memory is short
 *
 * An escape of a surrogate that is not in a pair is U+FFFD. An integer beyond 64 bits is a real, and only that one. Of a key that
 * an object has twice the last value counts, unless `flags` has JSON_REJECT_DUPLICATES. Check the depth before
 * (qn_json_is_deeper): Jansson recurses. */
json_t *qn_json_decode(const char *text, size_t length, size_t flags, json_error_t *why);

#endif
