/* /v1/responses/input_tokens and the same for chats: counts the tokens of the prompt that a body makes. */
#include "protocol/openai.h"
#include "protocol/responses.h"

/* A body of the other path is valid here; its `stream` is ignored. */
static qn_exchange *without_stream(qn_exchange *exchange)
{
    if (exchange)
        exchange->is_stream = exchange->has_events = false;
    return exchange;
}

static qn_exchange *parse_chat(json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    return without_stream(qn_openai_chat.parse(body, reading, refusal));
}

static qn_exchange *parse_responses(json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    return without_stream(qn_responses_create.parse(body, reading, refusal));
}

static void free_chat(qn_exchange *exchange)
{
    qn_openai_chat.free(exchange);
}

static void free_responses(qn_exchange *exchange)
{
    qn_responses_create.free(exchange);
}

static int end(qn_exchange *exchange, qn_bytes *out)
{
    qn_json_open(out, '{');
    qn_json_member_string(out, "object", "response.input_tokens");
    qn_json_member_integer(out, "input_tokens", (int64_t)((const qn_text_exchange *)exchange)->n_prompt);
    qn_json_close(out, '}');
    return 200;
}

#define COUNT_PROTOCOL(paths_, parse_, free_)                                                                          \
    {                                                                                                                  \
        .paths = paths_, .keep_alive = "", .is_direct = true, .parse = parse_, .bind = qn_text_exchange_bind_count,    \
        .begin = qn_llama_begin, .event = qn_text_exchange_no_event, .end = end, .fail = qn_openai_fail,               \
        .refuse = qn_openai_refuse, .free = free_                                                                      \
    }

static const char *const chat_paths[] = { "/v1/chat/completions/input_tokens", "/chat/completions/input_tokens", NULL },
                         *const responses_paths[] = { "/v1/responses/input_tokens", "/responses/input_tokens", NULL };

const qn_protocol qn_openai_chat_count = COUNT_PROTOCOL(chat_paths, parse_chat, free_chat);
const qn_protocol qn_responses_count = COUNT_PROTOCOL(responses_paths, parse_responses, free_responses);
