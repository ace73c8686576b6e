/* Reasoning that clients drop, put back. Agents send an answer's tool calls with the next request, but mostly without its
 * reasoning; the rendered conversation then differs from what the model wrote, and is evaluated again from there. The ids of
 * calls, and of reasoning where a protocol has them, are unguessable and known to who got the answer: by one of them, and within
 * the scope of a key, the answer's reasoning and its exact content come back. Answers without such an id are not kept.
 *
 *     qn_recall_apply(recall, scope, exchange->conversation);               between parse and bind
 *     qn_recall_take(&answer, event->output);                               of each QN_EXCHANGE_OUTPUT of a request
 *     qn_recall_keep(recall, scope, exchange, request, &answer);            at its end
 *
 * Threads: a recall may be used by any, at the same time. */
#ifndef QN_PROTOCOL_RECALL_H
#define QN_PROTOCOL_RECALL_H

#include "protocol/protocol.h"

typedef struct qn_recall qn_recall;

/* An answer that comes. Zero it before use. */
typedef struct qn_recall_answer {
    qn_bytes reasoning, content;
    bool has_call; /* a complete one */
} qn_recall_answer;

/* qn_recall_create - keeps at most so many answers, and so many bytes in all; of the scope that has most, what was used longest ago goes first. 0: the
 * default in brackets [10000, 64 MiB]. Free it with qn_recall_free. */
qn_status qn_recall_create(size_t max_answers, size_t max_bytes, qn_recall **out);
void qn_recall_free(qn_recall *recall); /* NULL is allowed */

/* qn_recall_take - what came of an answer. */
void qn_recall_take(qn_recall_answer *answer, const qn_output_event *event);

/* qn_recall_keep - keep an answer that has reasoning, and a complete call or an id of the reasoning; frees what `answer` has. Without memory it is not
 * kept. qn_recall_answer_free - of an answer that is not to be kept. */
void qn_recall_keep(qn_recall *recall, const char *scope, const qn_exchange *exchange, size_t request,
                    qn_recall_answer *answer);
void qn_recall_answer_free(qn_recall_answer *answer);

/* qn_recall_put - the same of a reasoning and a content, by the end of its ids, after their last '_'. */
void qn_recall_put(qn_recall *recall, const char *scope, const char *id, const qn_bytes *reasoning, const qn_bytes *content);

/* qn_recall_apply - put back what answers of the conversation lack: a message with a reasoning_id, or a call, whose id is
 * known, no reasoning_content, and the content that was sent, or none, gets the answer's reasoning_content and content. A message whose
 * content differs by more than spaces at its ends is left as it is, and so are other messages of the same answer, and those for
 * whose texts the account has no memory. NULL conversations are allowed. */
typedef struct qn_recalled {
    size_t n_messages; /* that were changed */
    size_t n_bytes;    /* that were promised to their texts */
} qn_recalled;
qn_recalled qn_recall_apply(qn_recall *recall, const char *scope, json_t *conversation, qn_account *account);

#endif
