/* What the files of quern batch share: a request of the input, and the lines of the output. */
#ifndef QN_CLI_BATCH_H
#define QN_CLI_BATCH_H

#include "cli/cli.h"
#include "protocol/protocol.h"

/* ---- batch_request.c: lines of the input ---- */

/* An error of a request: error.code and error.message of its line in the output. */
typedef struct qn_batch_error {
    const char *code; /* NULL: none */
    char message[512];
} qn_batch_error;

/* A request of a job. */
typedef struct qn_batch_slot {
    struct qn_batch_job *job;
    size_t index;
} qn_batch_slot;

/* A line of the input, and the exchange that answers it. */
typedef struct qn_batch_job {
    struct qn_batch *batch;
    size_t line;           /* number, from 1 */
    json_t *json;          /* the line; custom_id points into it. NULL if it is not JSON */
    const char *custom_id; /* NULL if there is none */
    qn_exchange *exchange; /* its requests' user is an item of `slots` */
    qn_batch_slot *slots;
    /* Protected by the batch's lock. */
    size_t n_left; /* requests that have not ended */
    bool is_cancelled;
    qn_batch_error error;
} qn_batch_job;

/* qn_batch_parse - read a line of `length` bytes into a job, whose line number is set. False with the error: the job then has
 * a custom_id if the line has one. Free with qn_batch_job_free in either case. */
bool qn_batch_parse(const char *text, size_t length, qn_batch_job *job, qn_batch_error *error);
void qn_batch_job_free(qn_batch_job *job);

/* qn_batch_bind - make the requests of a job that was parsed, and its slots. */
bool qn_batch_bind(qn_batch_job *job, const qn_served *served, qn_batch_error *error);

/* qn_batch_fail - set an error; the message begins with the line's number. qn_batch_refuse - the same of a refusal. Both
 * return false. */
bool qn_batch_fail(qn_batch_error *error, const qn_batch_job *job, const char *code, const char *format, ...) QN_PRINTF(4, 5);
bool qn_batch_refuse(qn_batch_error *error, const qn_batch_job *job, const qn_refusal *refusal);

/* ---- batch_output.c: lines of the output ---- */

/* A set of custom_ids or line numbers, as texts. */
typedef struct qn_batch_set {
    char **slots;
    size_t n, capacity;
} qn_batch_set;

/* qn_batch_set_add - whether the text was new. qn_batch_set_has. QN_ERR_MEMORY is an error line and `failed`. */
bool qn_batch_set_add(qn_batch_set *set, const char *text, bool *failed);
bool qn_batch_set_has(const qn_batch_set *set, const char *text);
void qn_batch_set_free(qn_batch_set *set);

/* qn_batch_open - open the output for appending, locked. Without `resume` it must be empty or new. With it, what it holds is
 * read: `ids` gets the custom_ids that have a line, `lines` the numbers of lines without one, or whose custom_id an earlier
 * line had, `n_answers` is increased by the lines that are no errors; an incomplete last line is removed. Returns the descriptor, or
 * -1 with an error line. */
int qn_batch_open(const char *path, bool resume, qn_batch_set *ids, qn_batch_set *lines, size_t *n_answers);

/* qn_batch_answer, qn_batch_error_line - a line of the output, with its newline; free() it. NULL without memory. */
char *qn_batch_answer(const qn_batch_job *job);
char *qn_batch_error_line(const qn_batch_job *job, const qn_batch_error *error);

/* qn_batch_write - append a line as a whole. False with errno. */
bool qn_batch_write(int fd, const char *line);

#define QN_BATCH_DUPLICATE "duplicate_custom_id"

#endif
