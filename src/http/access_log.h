/* The access log: a line of JSON for each request. It has no texts of requests and answers, and no keys.
 *
 *     {"time": "2026-01-31T12:00:00.123Z", "id": "...", "address": "127.0.0.1", "key": "alice", "method": "POST",
 *      "path": "/v1/chat/completions", "status": 200, "bytes": 1234, "prompt_tokens": 20, "cached_tokens": 0,
 *      "completion_tokens": 16, "seconds": 0.75, "cancelled": false}
 *
 * Threads: any, at the same time. */
#ifndef QN_HTTP_ACCESS_LOG_H
#define QN_HTTP_ACCESS_LOG_H

#include "quern/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct qn_access_log qn_access_log;

typedef struct qn_access {
    double time;         /* of arrival, seconds since 1970 */
    const char *id;      /* of the request */
    const char *address; /* of the client */
    const char *key;     /* the name of its key; NULL: none */
    const char *method;
    const char *path; /* without its query; cut after 256 bytes, the other texts after 64 */
    int status;
    uint64_t bytes; /* of the answer's body */
    size_t n_prompt, n_cached, n_generated;
    double seconds;
    bool is_cancelled; /* the client went away */
} qn_access;

/* qn_access_log_create - a log that appends to a file, made with mode 0640 if it does not exist; path NULL: to stderr.
 * QN_ERR_IO: it cannot be opened. Free it with qn_access_log_free. */
qn_status qn_access_log_create(const char *path, qn_access_log **out);
void qn_access_log_free(qn_access_log *log); /* NULL is allowed */

/* qn_access_log_reopen - open the path again, for a file that was renamed. QN_ERR_IO: the old one stays. */
qn_status qn_access_log_reopen(qn_access_log *log);

/* qn_access_log_write - append a line, with one call of write. A pipe that is full loses lines and makes nobody wait; the next
 * line has their number, "lost". */
void qn_access_log_write(qn_access_log *log, const qn_access *access);

#endif
