/* /v1/messages/count_tokens: counts the tokens of the prompt that a body of Messages makes. */
#include "protocol/anthropic.h"

static qn_exchange *parse(json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    qn_text_exchange *x = qn_text_exchange_alloc(sizeof(qn_anthropic), QN_CHAT_EXCHANGE, reading, refusal);
    if (!x)
        return NULL;
    if (qn_openai_common(x, body, refusal) && qn_anthropic_conversation((qn_anthropic *)x, body, reading, refusal)) {
        x->base.is_stream = false;
        return &x->base;
    }
    qn_anthropic_free(&x->base);
    return NULL;
}

static int end(qn_exchange *exchange, qn_bytes *out)
{
    qn_json_open(out, '{');
    qn_json_member_integer(out, "input_tokens", (int64_t)((const qn_text_exchange *)exchange)->n_prompt);
    qn_json_close(out, '}');
    return 200;
}

static const char *const paths[] = { "/v1/messages/count_tokens", NULL };

const qn_protocol qn_anthropic_count = { .paths = paths,
                                         .keep_alive = "",
                                         .request_header = "anthropic-version",
                                         .id_header = "request-id",
                                         .id_prefix = "req_",
                                         .is_direct = true,
                                         .parse = parse,
                                         .bind = qn_text_exchange_bind_count,
                                         .begin = qn_llama_begin,
                                         .event = qn_text_exchange_no_event,
                                         .end = end,
                                         .fail = qn_anthropic_fail,
                                         .refuse = qn_anthropic_refuse,
                                         .free = qn_anthropic_free };
