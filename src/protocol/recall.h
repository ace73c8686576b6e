/* Restores reasoning that clients drop. Agents send an answer's tool calls back with the next request, but mostly
 * without its reasoning. The rendered conversation then differs from the model's output, so that it would be evaluated
 * again from there. The ids of calls, and of reasoning where a protocol has them, cannot be guessed: only the client
 * that got the answer knows them. By such an id, within the scope of a key, the answer's reasoning and exact content
 * are restored. Answers without such an id are not kept.
 *
 * A scope is a text that belongs to an API key (http/keys.h), "" without keys. Answers of one scope are never restored
 * in another.
 *
 *     qn_recall_apply(recall, scope, exchange->conversation, account);      between parse and bind
 *     qn_recall_take(&answer, event->output);                               for each QN_EXCHANGE_OUTPUT of a request
 *     qn_recall_keep(recall, scope, exchange, request, &answer);            at its end
 *
 * Threads: a recall may be used by any threads at the same time; it has a lock of its own. An answer being received is
 * used by one thread at a time. Texts are copied. */
#ifndef QN_PROTOCOL_RECALL_H
#define QN_PROTOCOL_RECALL_H

#include "protocol/protocol.h"

typedef struct qn_recall qn_recall;

/* An answer being received. Zero it before use, but for the accounts of its texts; it owns them until qn_recall_keep or
 * qn_recall_answer_free. */
typedef struct qn_recall_answer {
    qn_bytes reasoning, content;
    bool has_call; /* a complete call */
} qn_recall_answer;

/* qn_recall_create - keep at most max_answers, and max_bytes in all. When there are more, the scope with the most loses
 * its least recently used answer. 0: the default, 10000 answers, 64 MiB. Free it with qn_recall_free. */
qn_status qn_recall_create(size_t max_answers, size_t max_bytes, qn_recall **out);
void qn_recall_free(qn_recall *recall); /* NULL is allowed */

/* qn_recall_take - add an event to an answer. */
void qn_recall_take(qn_recall_answer *answer, const qn_output_event *event);

/* qn_recall_keep - keep an answer that has reasoning and either a complete call or an id of the reasoning; frees the
 * texts of `answer`. Without memory the answer is not kept. */
void qn_recall_keep(qn_recall *recall, const char *scope, const qn_exchange *exchange, size_t request,
                    qn_recall_answer *answer);

/* qn_recall_answer_free - free the texts of an answer that is not kept. */
void qn_recall_answer_free(qn_recall_answer *answer);

/* qn_recall_put - keep copies of a reasoning and a content by `id`, the end of the answer's ids after their last '_'.
 * Another answer with this id is dropped. Without memory it is not kept. */
void qn_recall_put(qn_recall *recall, const char *scope, const char *id, const qn_bytes *reasoning,
                   const qn_bytes *content);

/* qn_recall_apply - restore answers of a conversation. A message gets the reasoning_content and content of the answer
 * whose reasoning id or call id it has, if it has no reasoning_content and its content is the answer's, but for spaces
 * at the ends, or missing. Not changed: further messages of the same answer, and messages for whose texts the account
 * has no memory. The conversation may be NULL. */
typedef struct qn_recalled {
    size_t n_messages; /* messages that were changed */
    size_t n_bytes;    /* bytes reserved in the account for their texts */
} qn_recalled;
qn_recalled qn_recall_apply(qn_recall *recall, const char *scope, json_t *conversation, qn_account *account);

#endif
