/* The access log: one line per request, JSON or text for people to read, without the texts of requests and answers and
 * without keys.
 *
 *     {"time": "2026-01-31T12:00:00.123Z", "id": "...", "address": "127.0.0.1", "key": "alice", "method": "POST",
 *      "path": "/v1/chat/completions", "status": 200, "bytes": 1234, "prompt_tokens": 20, "cached_tokens": 0,
 *      "completion_tokens": 16, "seconds": 0.75, "cancelled": false}
 *
 * and as text, in local time:
 *
 *     12:00:00 POST /v1/chat/completions 200, prompt 20 tokens (5 cached), answer 16, 0.75 s, 127.0.0.1, alice
 *
 * Threads: any, at the same time; qn_access_log_free when no other thread uses the log. */
#ifndef QN_HTTP_ACCESS_LOG_H
#define QN_HTTP_ACCESS_LOG_H

#include "quern/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct qn_access_log qn_access_log;
/* A request, for its line. */
typedef struct qn_access {
    double time;         /* of arrival, seconds since 1970 */
    const char *id;      /* of the request */
    const char *address; /* of the client */
    const char *key;     /* the name of its key; NULL: none */
    const char *method;
    const char *path; /* without its query; cut after 256 bytes, other texts after 64 */
    int status;
    uint64_t bytes; /* of the answer's body */
    size_t n_prompt, n_cached, n_generated;
    double seconds;
    bool is_cancelled; /* the client disconnected */
} qn_access;

typedef enum qn_access_format { QN_ACCESS_JSON, QN_ACCESS_TEXT } qn_access_format;

/* qn_access_log_create - open a log that appends to a file. A missing file is created with mode 0640; path NULL:
 * stderr. Free it with qn_access_log_free. QN_ERR_IO: the file cannot be opened. */
qn_status qn_access_log_create(const char *path, qn_access_format format, qn_access_log **out);
void qn_access_log_free(qn_access_log *log); /* NULL is allowed */

/* qn_access_log_reopen - open the path again, after log rotation. QN_ERR_IO: the open file stays in use. */
qn_status qn_access_log_reopen(qn_access_log *log);

/* qn_access_log_write - append a line with one call of write(), without waiting for the reader of a pipe. The strings
 * of `access` are not kept. Lines that a full pipe does not take are lost; the next line has their number as "lost". */
void qn_access_log_write(qn_access_log *log, const qn_access *access);

#endif
