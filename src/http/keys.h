/* API keys: from arguments and files, found in a time that says nothing about them.
 *
 * A key is 1 to QN_KEY_MAX_BYTES visible characters of ASCII. An argument and a line of a file is a key, or "name: key", the
 * space being part of the delimiter. Files have empty lines and comments, which begin with '#', too. A key without a name has
 * its number as name, "key1" being the first of all.
 *
 * Threads: any, at the same time. */
#ifndef QN_HTTP_KEYS_H
#define QN_HTTP_KEYS_H

#include "quern/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { QN_KEY_MAX_BYTES = 256, QN_KEY_NAME_BYTES = 64, QN_KEY_SCOPE_BYTES = 40, QN_KEY_MAX_KEYS = 10000 };

typedef struct qn_keys qn_keys;

/* Of a key that was found. */
typedef struct qn_key {
    char name[QN_KEY_NAME_BYTES];   /* for logs */
    char scope[QN_KEY_SCOPE_BYTES]; /* for qn_request_params.scope: equal for the same key only, as long as the process runs,
                                       whatever is reloaded */
    bool is_operators;              /* it may see what others do: it has the name QN_KEY_OPERATORS, or is the only one */
} qn_key;

#define QN_KEY_OPERATORS "metrics"

/* qn_keys_create - all keys of arguments and files.
 *
 *   values   [n_values] arguments, copied
 *   files    [n_files] paths, copied
 *   warn     receives a text for each file that all users can read; NULL: none
 *   out      free it with qn_keys_free
 *
 * QN_ERR_INVALID   a key or name is too long or has other characters (the text has its place, not the key), a file has no
 *                  keys, or there are more than QN_KEY_MAX_KEYS
 * QN_ERR_IO        a file cannot be read */
qn_status qn_keys_create(const char *const *values, size_t n_values, const char *const *files, size_t n_files,
                         void (*warn)(const char *text), qn_keys **out);
void qn_keys_free(qn_keys *keys); /* NULL is allowed */

/* qn_keys_reload - read the files again. Fails as qn_keys_create does; then the keys stay as they were. */
qn_status qn_keys_reload(qn_keys *keys);

/* qn_keys_find - the key of a request, from the values of its headers Authorization ("Bearer KEY") and X-Api-Key, of which any
 * may be NULL; if both are known keys it is the first. False: none is known. The time depends on the number of keys and on
 * what the request has, not on which keys there are. */
bool qn_keys_find(qn_keys *keys, const char *authorization, const char *api_key, qn_key *key);

#endif
