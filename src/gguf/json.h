/* JSON files and texts: duplicate keys, NUL characters, deep nesting, large files and values that take much more memory than their text
 * (qn_json_load) are errors. */
#ifndef QN_GGUF_JSON_H
#define QN_GGUF_JSON_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { QN_JSON_MAX_DEPTH = 64 };

/* qn_json_parse - parse a text whose value is an object.
 *
 *   what   names the text in error texts
 *   out    the object; free it with json_decref. NULL on failure
 *
 * QN_ERR_FORMAT, with line and column, for a text that is not JSON, not an object, nested more than QN_JSON_MAX_DEPTH deep, has an
 * object with a repeated key, or values that take too much memory. */
qn_status qn_json_parse(const char *what, const char *text, size_t length, json_t **out);

/* qn_json_read - read and parse a file of at most `limit` bytes. If it does not exist and is not required, *out is NULL and
 * the status is QN_OK. An integer of more than 64 bits, as tokenizer_config.json's model_max_length is by default, is a real number. */
qn_status qn_json_read(const char *path, uint64_t limit, bool required, json_t **out);

/* qn_text_read - read a file as it is. *text has a terminating zero after its *length bytes; free it with free(). NULL if the
 * file does not exist and is not required. */
qn_status qn_text_read(const char *path, uint64_t limit, bool required, char **text, size_t *length);

#endif
