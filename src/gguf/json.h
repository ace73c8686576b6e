/* JSON files and texts, read with Jansson: duplicate keys, NUL characters, deep nesting and large files are errors. */
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
 * QN_ERR_FORMAT, with line and column, for a text that is not JSON, not an object, nested more than QN_JSON_MAX_DEPTH deep, or
 * has an object with a repeated key. */
qn_status qn_json_parse(const char *what, const char *text, size_t length, json_t **out);

/* qn_json_read - read and parse a file of at most `limit` bytes. If it does not exist and is not required, *out is NULL and
 * the status is QN_OK. A file with an integer of more than 64 bits, as tokenizer_config.json's model_max_length is by
 * default, has only real numbers. */
qn_status qn_json_read(const char *path, uint64_t limit, bool required, json_t **out);

/* qn_text_read - read a file as it is. *text has a terminating zero after its *length bytes; free it with free(). NULL if the
 * file does not exist and is not required. */
qn_status qn_text_read(const char *path, uint64_t limit, bool required, char **text, size_t *length);

#endif
