/* Decodes JSON from strangers (clients, files, servers) to Jansson's values, including texts that Jansson refuses
 * but JavaScript and Python print. Memory is counted before it is allocated: a small text can produce values of
 * eighty times its size. */
#ifndef QN_GGUF_JSON_DECODE_H
#define QN_GGUF_JSON_DECODE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum { QN_JSON_DEPTH = 256 };

/* Limits of a text. 0 means the default. */
typedef struct qn_json_limits {
    size_t depth;      /* levels of arrays and objects; at most QN_JSON_DEPTH, which 0 means, too */
    bool refuses_zero; /* refuse U+0000 in strings, which would end a C string */
    /* Called before values take `bytes` of memory. False: the limit is exceeded, and decoding ends. NULL: no limit. */
    bool (*take)(void *user, size_t bytes);
    void *user;
} qn_json_limits;

/* qn_json_decode - parses JSON.
 *
 *   text     [length] need not be terminated; unchanged
 *   flags    JSON_DECODE_ANY: also accept values other than arrays and objects; JSON_REJECT_DUPLICATES
 *   limits   NULL: the defaults
 *   why      set if the result is NULL: Jansson's error, with line, column, byte offset and text. The code is
 *            json_error_out_of_memory if memory is short or `take` returned false, json_error_stack_overflow if the
 *            nesting is too deep
 *
 * A byte order mark before the value is skipped. An escaped surrogate that is not in a pair becomes U+FFFD. Strings
 * may contain U+0000, keys may not. An integer beyond 64 bits becomes a real; a number beyond the range of reals is
 * an error. If an object repeats a key, the last value counts. Equal integers in long arrays, such as token ids, may
 * be one shared value, so integers must not be changed. The use of stack and time for each byte do not depend on the
 * depth. */
json_t *qn_json_decode(const char *text, size_t length, size_t flags, const qn_json_limits *limits, json_error_t *why);

/* qn_json_found - describes a value for an error text: "robot" with its quotes (of a long string the beginning), 3,
 * 0.5, true, null, an array, an object; missing for NULL. Writes to `text` and returns it. */
enum { QN_JSON_FOUND_BYTES = 64 };
const char *qn_json_found(const json_t *value, char text[QN_JSON_FOUND_BYTES]);

/* qn_json_take - a `take` function: *left, a size_t, is the number of bytes left. */
bool qn_json_take(void *left, size_t bytes);

/* qn_json_load - qn_json_decode for texts of files and servers: values may take at most 24 times the text's size
 * plus 1 MiB, and 512 MiB. U+0000 is refused. */
json_t *qn_json_load(const char *text, size_t length, size_t flags, size_t depth, json_error_t *why);

#endif
