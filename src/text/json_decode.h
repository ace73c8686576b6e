/* JSON that clients send, as they mean it, into Jansson's values: what Jansson refuses and JavaScript and Python print. Memory is
 * counted before it is used: a small text can make values of eighty times its size. */
#ifndef QN_TEXT_JSON_DECODE_H
#define QN_TEXT_JSON_DECODE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* What a text may have. Zero: the defaults. */
typedef struct qn_json_limits {
    size_t depth; /* levels of arrays and objects; 0, or more than it: QN_JSON_MAX_DEPTH */
    /* Called before values take as many bytes; false: they are too many, and decoding ends. NULL: there is no limit. */
    bool (*take)(void *user, size_t bytes);
    void *user;
} qn_json_limits;

/* qn_json_decode - parse JSON.
 *
 *   text     [length] need not be terminated; unchanged
 *   flags    JSON_DECODE_ANY: also values that are no array and no object; JSON_REJECT_DUPLICATES
 *   limits   NULL for the defaults
 *   why      Jansson's error, when the result is NULL: a line, a column, the offset of a byte, a text. The code is
 *            json_error_out_of_memory where memory is short or `take` returned false, json_error_stack_overflow where the text is
 *            nested too deeply
 *
 * An escape of a surrogate that is not in a pair is U+FFFD; strings may have U+0000, keys may not. An integer beyond 64 bits is a
 * real, and only that one; a number beyond reals is an error. Of a key that an object has twice the last value counts. Equal
 * integers of long arrays may be one value, as those of token ids: integers must not be changed. Stack and time do not grow with
 * the depth. */
json_t *qn_json_decode(const char *text, size_t length, size_t flags, const qn_json_limits *limits, json_error_t *why);

#endif
