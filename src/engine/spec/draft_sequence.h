/* Sequences of a draft model: each follows one text, evaluates what is new of it, and proposes the likeliest next
 * tokens, one a step of the draft model. Many sequences go in one step.
 *
 * A runner and its sequences are used by the thread that holds the lock of the model for which they draft; sequences
 * may be created and freed by any thread. */
#ifndef QN_ENGINE_SPEC_DRAFT_SEQUENCE_H
#define QN_ENGINE_SPEC_DRAFT_SEQUENCE_H

#include "device/device.h"

typedef struct qn_draft_runner qn_draft_runner;
typedef struct qn_draft_sequence qn_draft_sequence;

/* Most rows of a step of the draft model. */
enum { QN_DRAFT_ROWS = 128 };

/* qn_draft_runner_create - Creates what steps of a draft model need. Free with qn_draft_runner_free, after its
 * sequences; NULL is allowed.
 *
 *   device    of the draft model; must outlive the runner
 *   format    of its cache
 *   n_vocab   its number of logits
 *   n_ctx     most tokens of a text */
qn_status qn_draft_runner_create(qn_device *device, const qn_kv_format *format, size_t n_vocab, size_t n_ctx,
                                 qn_draft_runner **out);
void qn_draft_runner_free(qn_draft_runner *runner);

/* qn_draft_sequence_create - Creates an empty sequence. Free with qn_draft_sequence_free; NULL is allowed. */
qn_status qn_draft_sequence_create(qn_draft_runner *runner, qn_draft_sequence **out);
void qn_draft_sequence_free(qn_draft_sequence *sequence);

/* qn_draft_sequence_memory - Returns its memory. While that is empty, pages and states of another sequence with the
 * same first tokens may be put into it: then call qn_draft_sequence_take with these tokens. QN_ERR_MEMORY leaves it
 * empty. */
qn_memory *qn_draft_sequence_memory(qn_draft_sequence *sequence);
qn_status qn_draft_sequence_take(qn_draft_sequence *sequence, const qn_token *tokens);

/* qn_draft_sequence_restart - The next text may differ anywhere from that of earlier calls. */
void qn_draft_sequence_restart(qn_draft_sequence *sequence);

/* qn_draft_sequence_follow - Drops the rows that are not those of a text of n > 0 tokens, whose first tokens are those
 * of earlier calls. Recurrent layers that cannot drop them begin again.
 *
 *   n_held   output: the number of its tokens that the sequence holds, less than n
 *
 * Returns false if the draft model cannot evaluate the text: it is too long, or has tokens that the model does not
 * have. */
bool qn_draft_sequence_follow(qn_draft_sequence *sequence, const qn_token *tokens, size_t n, size_t *n_held);

/* qn_draft_sequence_most - Returns how many rows of proposed tokens can follow n > 0 more rows of the text and be
 * dropped again. */
size_t qn_draft_sequence_most(const qn_draft_sequence *sequence, size_t n);

/* qn_draft_sequence_bytes - Returns the bytes of memory that a sequence uses. */
size_t qn_draft_sequence_bytes(const qn_draft_sequence *sequence);

/* Rows to append to a sequence, and the token that follows them. */
typedef struct qn_draft_rows {
    qn_draft_sequence *sequence;
    const qn_token *tokens; /* [n] */
    size_t n;
    bool samples; /* the next token is wanted */
    /* result */
    bool failed;    /* there was no memory; the sequence is as before */
    qn_token token; /* the likeliest; -1 if no logit is finite */
    float chance;   /* its probability */
} qn_draft_rows;

/* qn_draft_runner_run - Appends rows to sequences, each of which is in the list once. As many steps are run as
 * they need.
 *
 *   on_step   called after each step with its number of rows, if it is not NULL
 *
 * After an error the sequences in the list are empty. */
qn_status qn_draft_runner_run(qn_draft_runner *runner, qn_draft_rows *list, size_t n,
                              void (*on_step)(void *user, size_t n_rows), void *user);

#endif
