/* Fields of other servers that would change an answer and are not supported: they are refused unless they have the
 * value that changes nothing. docs/server.md lists ignored fields, which change no answer. */
#include "protocol/openai.h"

#include <string.h>

/* Values, besides null, that change nothing. */
typedef enum neutral_value { NONE, FALSE, TRUE, ZERO, NOT_POSITIVE, ONE, EMPTY } neutral_value;

/* The bodies that a field belongs to: chats, completions, or both. */
typedef enum body_kind { OF_CHATS = 1, OF_COMPLETIONS = 2, OF_ALL = 3 } body_kind;

static const struct {
    const char *name;
    neutral_value neutral;
    body_kind of;
} fields[] = {
    /* Where an answer ends, and which tokens it may have. */
    { "stop_regex", EMPTY, OF_ALL },
    { "include_stop_str_in_output", FALSE, OF_ALL },
    { "no_stop_trim", FALSE, OF_ALL },
    { "allowed_token_ids", EMPTY, OF_ALL },
    { "bad_words", EMPTY, OF_ALL },
    { "t_max_predict_ms", NOT_POSITIVE, OF_ALL },
    { "n_indent", ZERO, OF_ALL },
    /* How tokens are sampled. */
    { "use_beam_search", FALSE, OF_ALL },
    { "tfs_z", ONE, OF_ALL },
    { "dynatemp_range", ZERO, OF_ALL },
    { "adaptive_target", NOT_POSITIVE, OF_ALL },
    { "min_keep", ZERO, OF_ALL },
    { "logits_processors", EMPTY, OF_ALL },
    { "custom_logit_processor", NONE, OF_ALL },
    { "lora", EMPTY, OF_ALL },
    { "lora_path", NONE, OF_ALL },
    /* What constrains an answer. */
    { "guided_whitespace_pattern", NONE, OF_ALL },
    { "structural_tag", NONE, OF_ALL },
    { "grammar_lazy", FALSE, OF_ALL },
    { "grammar_triggers", EMPTY, OF_ALL },
    { "guided_decoding", EMPTY, OF_ALL },
    { "format", EMPTY, OF_ALL },
    { "extra_body", EMPTY, OF_ALL }, /* argument of Python's client, which should send its members instead */
    /* The prompt. */
    { "truncate_prompt_tokens", NONE, OF_ALL },
    { "chat_template", NONE, OF_CHATS },
    { "documents", EMPTY, OF_CHATS },
    { "add_special_tokens", FALSE, OF_CHATS },
    { "add_special_tokens", TRUE, OF_COMPLETIONS },
    { "thinking_token_budget", NONE, OF_CHATS },
    { "web_search_options", NONE, OF_CHATS },
    /* What is answered. */
    { "audio", NONE, OF_CHATS },
    { "echo", FALSE, OF_CHATS },
    { "separate_reasoning", TRUE, OF_CHATS },
    { "include_reasoning", TRUE, OF_CHATS },
    { "parse_tool_calls", TRUE, OF_CHATS },
    { "skip_special_tokens", TRUE, OF_ALL },
    { "prompt_logprobs", NONE, OF_ALL },
    { "return_token_ids", FALSE, OF_ALL },
    { "return_tokens_as_token_ids", FALSE, OF_ALL },
    { "return_hidden_states", FALSE, OF_ALL },
};

static bool is_neutral(const json_t *value, neutral_value neutral)
{
    const double number = json_number_value(value);
    switch (neutral) {
    case NONE: return false;
    case FALSE: return json_is_false(value);
    case TRUE: return json_is_true(value);
    case ZERO: return json_is_number(value) && number == 0;
    case NOT_POSITIVE: return json_is_number(value) && number <= 0;
    case ONE: return json_is_number(value) && number == 1;
    case EMPTY:
        return (json_is_array(value) && !json_array_size(value)) ||
               (json_is_object(value) && !json_object_size(value)) ||
               (json_is_string(value) && !json_string_length(value));
    }
    return false;
}

bool qn_refuse_unsupported(const json_t *body, bool is_chat, qn_refusal *refusal)
{
    static const char *const expected[] = {
        [NONE] = "none", [FALSE] = "false", [TRUE] = "true", [ZERO] = "0", [NOT_POSITIVE] = "0 or less",
        [ONE] = "1",     [EMPTY] = "none"
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const json_t *value = qn_field(body, fields[i].name);
        if (value && fields[i].of & (is_chat ? OF_CHATS : OF_COMPLETIONS) && !is_neutral(value, fields[i].neutral))
            return qn_refuse(refusal, 400, "unsupported", fields[i].name, "'%s' is not supported: expected %s",
                             fields[i].name, expected[fields[i].neutral]);
    }
    return true;
}
