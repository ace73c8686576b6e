/* Shared by the files of quern batch: jobs, which are lines of the input, and the lines of the output. In batch a
 * request is a request of the scheduler; a line with n choices has n. */
#ifndef QN_CLI_BATCH_H
#define QN_CLI_BATCH_H

#include "cli/cli.h"
#include "protocol/protocol.h"

/* ---- batch_request.c: lines of the input ---- */

/* An error of a job: error.code and error.message of its line in the output. */
typedef struct qn_batch_error {
    const char *code; /* NULL: none */
    char message[512];
} qn_batch_error;

/* The user pointer of one request of a job. */
typedef struct qn_batch_slot {
    struct qn_batch_job *job;
    size_t index;
} qn_batch_slot;

/* A job: a line of the input, and the exchange that answers it. It belongs to the main thread until its requests are
 * submitted, then to the callbacks, of which the last frees it. */
typedef struct qn_batch_job {
    struct qn_batch *batch;
    size_t line;           /* number, from 1 */
    json_t *json;          /* the line; custom_id points into it. NULL: it is not JSON */
    const char *custom_id; /* borrowed from `json`; NULL: there is none */
    qn_exchange *exchange; /* its requests have an item of `slots` as user pointer */
    qn_batch_slot *slots;
    /* Protected by the batch's lock. */
    size_t n_left; /* requests that have not ended */
    bool is_cancelled;
    qn_batch_error error;
} qn_batch_job;

/* qn_batch_parse - parse a line of `length` bytes into a job, whose line number is set. False: *error is set; the job
 * still has a custom_id if the line has one. Free it with qn_batch_job_free in either case. */
bool qn_batch_parse(const char *text, size_t length, qn_batch_job *job, qn_batch_error *error);
void qn_batch_job_free(qn_batch_job *job);

/* qn_batch_bind - make the requests of a parsed job, and its slots. False: *error is set. */
bool qn_batch_bind(qn_batch_job *job, const qn_served *served, qn_batch_error *error);

/* qn_batch_fail - set an error; the message begins with the line's number. Returns false. */
bool qn_batch_fail(qn_batch_error *error, const qn_batch_job *job, const char *code, const char *format, ...)
    QN_PRINTF(4, 5);

/* qn_batch_refuse - set an error from a refusal. Returns false. */
bool qn_batch_refuse(qn_batch_error *error, const qn_batch_job *job, const qn_refusal *refusal);

/* ---- batch_output.c: lines of the output ---- */

/* A set of custom_ids or line numbers, as texts. */
typedef struct qn_batch_set {
    char **slots;
    size_t n, capacity;
} qn_batch_set;

/* qn_batch_set_add - add a text. Returns whether it is new. Without memory an error line is printed and *failed is
 * set. */
bool qn_batch_set_add(qn_batch_set *set, const char *text, bool *failed);

/* qn_batch_set_has - whether the set has a text. */
bool qn_batch_set_has(const qn_batch_set *set, const char *text);
void qn_batch_set_free(qn_batch_set *set);

/* qn_batch_open - open the output for appending, and lock it. Without `resume` it must be empty or new. With `resume`
 * its lines are read: `ids` gets the custom_ids that have a line; `lines` the line numbers of jobs without a custom_id,
 * or with that of an earlier line; n_answers is increased by the lines that are not errors. An incomplete last line is
 * removed. Returns the descriptor, or -1 with an error line. */
int qn_batch_open(const char *path, bool resume, qn_batch_set *ids, qn_batch_set *lines, size_t *n_answers);

/* qn_batch_answer - returns the output line of a job's answer, with its newline; free() it. NULL: no memory. */
char *qn_batch_answer(const qn_batch_job *job);

/* qn_batch_error_line - returns the output line of a job's error, with its newline; free() it. NULL: no memory. */
char *qn_batch_error_line(const qn_batch_job *job, const qn_batch_error *error);

/* qn_batch_write - append a whole line. False: errno is set. */
bool qn_batch_write(int fd, const char *line);

#define QN_BATCH_DUPLICATE "duplicate_custom_id"

#endif
