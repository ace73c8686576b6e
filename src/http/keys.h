/* API keys, from arguments and files. A lookup takes a time that tells nothing about the keys.
 *
 * A key is 1 to QN_KEY_MAX_BYTES visible ASCII characters. An argument or a line of a file is a key or "name: key"; the
 * space is part of the delimiter. Empty lines of a file and lines that begin with '#' are skipped. A key without a name
 * is named by its number, the first of all being "key1".
 *
 * Threads: any, at the same time; qn_keys_free when no other thread uses the keys. Requests during a reload find the
 * old keys or the new ones, never some of each. */
#ifndef QN_HTTP_KEYS_H
#define QN_HTTP_KEYS_H

#include "quern/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { QN_KEY_MAX_BYTES = 256, QN_KEY_NAME_BYTES = 64, QN_KEY_SCOPE_BYTES = 40, QN_KEY_MAX_KEYS = 10000 };

typedef struct qn_keys qn_keys;

/* A key that was found. */
typedef struct qn_key {
    char name[QN_KEY_NAME_BYTES]; /* for logs */
    /* For qn_request_params.scope: differs between keys, and stays the same for a key across reloads until the process
     * ends. */
    char scope[QN_KEY_SCOPE_BYTES];
    bool is_operators; /* it may see the activity of others: it is named QN_KEY_OPERATORS, or is the only key */
} qn_key;

#define QN_KEY_OPERATORS "metrics"

/* qn_keys_create - read all keys of arguments and files.
 *
 *   values   [n_values] arguments, copied
 *   files    [n_files] paths, copied
 *   warn     receives a text for each file that all users can read, and if no key may read /metrics; NULL: none
 *   out      free it with qn_keys_free
 *
 * QN_ERR_INVALID   a key or name is too long or has other characters (the text gives the place, not the key), a file
 *                  has no keys, or there are more than QN_KEY_MAX_KEYS
 * QN_ERR_IO        a file cannot be read */
qn_status qn_keys_create(const char *const *values, size_t n_values, const char *const *files, size_t n_files,
                         void (*warn)(const char *text), qn_keys **out);
void qn_keys_free(qn_keys *keys); /* NULL is allowed */

/* qn_keys_reload - read the files again. After an error, as of qn_keys_create, the old keys stay. */
qn_status qn_keys_reload(qn_keys *keys);

/* qn_keys_find - find the key of a request by its headers Authorization ("Bearer KEY") and X-Api-Key; either may be
 * NULL. If both have known keys, Authorization wins. False: no known key. The time depends on the number of keys and on
 * the request's headers, not on the stored keys. */
bool qn_keys_find(qn_keys *keys, const char *authorization, const char *api_key, qn_key *key);

#endif
