/* JSON files and texts. Duplicate keys, NUL characters, deep nesting, large files, and values that take much more
 * memory than their text (qn_json_load) are errors. */
#ifndef QN_GGUF_JSON_H
#define QN_GGUF_JSON_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { QN_JSON_MAX_DEPTH = 64 };

/* qn_json_parse - parses a text whose value is an object.
 *
 *   what   names the text in error texts
 *   out    the object; free it with json_decref. NULL on failure
 *
 * QN_ERR_FORMAT, with line and column, if the text is not JSON, is not an object, is nested deeper than
 * QN_JSON_MAX_DEPTH, repeats a key in an object, or has values that take too much memory. */
qn_status qn_json_parse(const char *what, const char *text, size_t length, json_t **out);

/* qn_json_read - reads and parses a file of at most `limit` bytes. If it is missing and not required, *out is NULL
 * and the status is QN_OK. An integer of more than 64 bits, such as the default model_max_length in
 * tokenizer_config.json, becomes a real number. */
qn_status qn_json_read(const char *path, uint64_t limit, bool required, json_t **out);

/* qn_text_read - reads a file unchanged. *text has *length bytes and a terminating zero; free it with free(). NULL
 * if the file is missing and not required. */
qn_status qn_text_read(const char *path, uint64_t limit, bool required, char **text, size_t *length);

#endif
