/* What the files of quern batch share: a request of the input, and the lines of the output. */
#ifndef QN_CLI_BATCH_H
#define QN_CLI_BATCH_H

#include "cli/cli.h"
#include "quern/scheduler.h"

#include <jansson.h>

/* ---- batch_request.c: lines of the input ---- */

/* Most choices of a request (`n`). */
enum { QN_BATCH_MAX_CHOICES = 128 };

typedef struct qn_batch_token {
    qn_token token;
    qn_logprobs logprobs;
} qn_batch_token;

typedef struct qn_batch_text {
    char *data; /* [length] */
    size_t length, capacity;
} qn_batch_text;

/* One of the answers to a line. */
typedef struct qn_batch_choice {
    struct qn_batch_job *job;
    qn_batch_text text, reasoning; /* of chats, text is the content */
    qn_batch_text name, arguments; /* of the call that comes */
    json_t *calls;                 /* an array of those that are complete, or NULL */
    qn_batch_token *tokens;        /* [n_tokens] with log probabilities, else none */
    size_t n_tokens, cap_tokens;
    qn_request_result result; /* without its error text */
    bool has_failed;          /* no memory */
} qn_batch_choice;

/* An error of a request: error.code and error.message of its line in the output. */
typedef struct qn_batch_error {
    const char *code; /* NULL: none */
    char message[512];
} qn_batch_error;

/* A line of the input, and its answers. */
typedef struct qn_batch_job {
    struct qn_batch *batch;
    size_t line;           /* number, from 1 */
    json_t *json;          /* the line; custom_id and params point into it. NULL if it is not JSON */
    const char *custom_id; /* NULL if there is none */
    bool is_chat;
    qn_request_params params; /* without callbacks; the seed is that of the first choice */
    char *conversation;       /* of chats, JSON; free() */
    qn_token *tokens;
    qn_logit_bias *bias;
    const char **stop;
    qn_batch_choice *choices;
    size_t n_choices;
    /* Protected by the batch's lock. */
    size_t n_left; /* choices that have not ended */
    bool is_cancelled;
    qn_batch_error error;
} qn_batch_job;

/* qn_batch_parse - read a line of `length` bytes into a job, whose line number is set. False with the error: the job then has
 * a custom_id if the line has one. Free with qn_batch_job_free in either case. */
bool qn_batch_parse(const char *text, size_t length, qn_batch_job *job, qn_batch_error *error);
void qn_batch_job_free(qn_batch_job *job);

/* qn_batch_field - a field of an object; NULL if it is missing or null. */
json_t *qn_batch_field(const json_t *object, const char *name);

/* qn_batch_wrong - set the error that a field has a value of another type than expected. Returns false. */
bool qn_batch_wrong(qn_batch_error *error, const qn_batch_job *job, const char *name, const json_t *value,
                    const char *expected);

/* qn_batch_seed - of a choice, from that of the first. */
uint64_t qn_batch_seed(uint64_t seed, size_t choice);

/* qn_batch_fail - set an error; the message begins with the line's number. Returns false. */
bool qn_batch_fail(qn_batch_error *error, const qn_batch_job *job, const char *code, const char *format, ...) QN_PRINTF(4, 5);

/* ---- batch_conversation.c: bodies of chats ---- */

/* qn_batch_conversation - the conversation of a chat's body, for qn_request_params.conversation: job->conversation. */
bool qn_batch_conversation(qn_batch_job *job, const json_t *body, qn_batch_error *error);

/* ---- batch_choice.c: what a choice collects ---- */

/* qn_batch_choice_text, qn_batch_choice_event - take a piece of an answer. False without memory; the choice has failed then. */
bool qn_batch_choice_text(qn_batch_choice *choice, const char *text, size_t length);
bool qn_batch_choice_event(qn_batch_choice *choice, const qn_output_event *event);

/* qn_batch_choice_json - a choice of an answer; NULL without memory. */
json_t *qn_batch_choice_json(const qn_batch_choice *choice, const qn_model *model, size_t index);
void qn_batch_choice_free(qn_batch_choice *choice);

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
 * line had; an incomplete last line is removed. Returns the descriptor, or -1 with an error line. */
int qn_batch_open(const char *path, bool resume, qn_batch_set *ids, qn_batch_set *lines);

/* qn_batch_answer, qn_batch_error_line - a line of the output, with its newline; free() it. NULL without memory. */
char *qn_batch_answer(const qn_batch_job *job, const qn_model *model, const char *model_name);
char *qn_batch_error_line(const qn_batch_job *job, const qn_batch_error *error);

/* qn_batch_write - append a line as a whole. False with errno. */
bool qn_batch_write(int fd, const char *line);

/* ---- batch_logprobs.c ---- */

/* qn_batch_logprobs - the object `logprobs` of a choice, in the form of chats or of completions. NULL without memory. */
json_t *qn_batch_logprobs(const qn_batch_choice *choice, const qn_model *model);

#define QN_BATCH_DUPLICATE "duplicate_custom_id"

#endif
