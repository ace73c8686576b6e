/* JSON of strangers (clients, files, servers) into Jansson's values, as they mean it: what Jansson refuses and JavaScript and Python
 * print. Memory is counted before it is used: a small text can make values of eighty times its size. */
#ifndef QN_GGUF_JSON_DECODE_H
#define QN_GGUF_JSON_DECODE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum { QN_JSON_DEPTH = 256 };

/* What a text may have. Zero: the defaults. */
typedef struct qn_json_limits {
    size_t depth;      /* levels of arrays and objects; 0, or more than it: QN_JSON_DEPTH */
    bool refuses_zero; /* U+0000 in strings, which cuts them where they are texts of C */
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
 * A byte order mark before the value is passed over. An escape of a surrogate that is not in a pair is U+FFFD; strings may have U+0000, keys may not. An integer beyond 64 bits is a
 * real, and only that one; a number beyond reals is an error. Of a key that an object has twice the last value counts. Equal
 * integers of long arrays may be one value, as those of token ids: integers must not be changed. Stack and time do not grow with
 * the depth. */
json_t *qn_json_decode(const char *text, size_t length, size_t flags, const qn_json_limits *limits, json_error_t *why);

/* qn_json_found - what an error says that a value is, in the buffer `text` of size QN_JSON_FOUND_BYTES, which it returns: "robot" with
 * its quotes (of a long string the beginning), 3, 0.5, true, null, an array, an object; missing for NULL. */
enum { QN_JSON_FOUND_BYTES = 64 };
const char *qn_json_found(const json_t *value, char text[QN_JSON_FOUND_BYTES]);

/* qn_json_take - `take` where *left, a size_t, is how many bytes there are left. */
bool qn_json_take(void *left, size_t bytes);

/* qn_json_load - qn_json_decode for texts of files and servers: values of at most 24 times its size, and a MiB, and 512 MiB. U+0000 is
 * refused. */
json_t *qn_json_load(const char *text, size_t length, size_t flags, size_t depth, json_error_t *why);

#endif
