/* Anthropic's Messages protocol: a body becomes a chat, its output becomes the content blocks of a message. */
#ifndef QN_PROTOCOL_ANTHROPIC_H
#define QN_PROTOCOL_ANTHROPIC_H

#include "protocol/openai.h"

extern const qn_protocol qn_anthropic_messages, qn_anthropic_count;

/* The code of a refusal after which Anthropic's packages send the whole conversation with each request. */
#define QN_ANTHROPIC_NO_THREADS "thread_unsupported_request"

typedef enum qn_anthropic_block { QN_BLOCK_NONE, QN_BLOCK_THINKING, QN_BLOCK_TEXT, QN_BLOCK_TOOL } qn_anthropic_block;

typedef struct qn_anthropic {
    qn_text_exchange base;
    bool omits_thinking;      /* thinking blocks have only a signature */
    bool hides_thinking;      /* there are no thinking blocks: the body did not ask for thinking */
    qn_anthropic_block block; /* the open block, which is always the last */
    size_t n_blocks, n_thinking;
    qn_bytes blocks; /* without a stream: the complete blocks, as JSON values */
} qn_anthropic;

/* ---- anthropic_body.c; false: refused ---- */

/* qn_anthropic_conversation - turn system, messages, tools and thinking of a body into base.base.conversation,
 * base.tools and base.format. */
bool qn_anthropic_conversation(qn_anthropic *x, const json_t *body, qn_reading *reading, qn_refusal *refusal);

/* ---- anthropic_messages.c ---- */

/* qn_anthropic_free - member `free` of the qn_protocol. */
void qn_anthropic_free(qn_exchange *exchange);

/* qn_anthropic_refuse - member `refuse` of the qn_protocol, in Anthropic's form. */
void qn_anthropic_refuse(const qn_refusal *refusal, qn_bytes *out);

/* qn_anthropic_fail - member `fail` of the qn_protocol, in Anthropic's form. */
void qn_anthropic_fail(qn_exchange *exchange, const qn_refusal *refusal, qn_bytes *out);

#endif
