/* The protocols of OpenAI and llama-server, and the exchange that all protocols of generated text share: the values of
 * a body, choices that collect output, and parts of answers. Anthropic's Messages and OpenAI's Responses begin with it,
 * too.
 *
 * Functions that take a value of a body (qn_..._take_...) read it into the exchange or the conversation. Their JSON
 * arguments belong to the caller: where a function keeps a value it takes a reference of its own, and none releases the
 * caller's. A field that is missing leaves the exchange as it is. False: refused. One thread at a time uses an
 * exchange, with all its choices. */
#ifndef QN_PROTOCOL_OPENAI_H
#define QN_PROTOCOL_OPENAI_H

#include "quern/grammar.h"
#include "protocol/json_body.h"
#include "text/utf8_stream.h"

extern const qn_protocol qn_openai_chat, qn_openai_completion, qn_openai_chat_count, qn_responses_count,
    qn_llama_completion, qn_llama_tokenize, qn_llama_detokenize, qn_llama_template, qn_openai_embeddings,
    qn_llama_embeddings, qn_llama_infill;

/* The kinds of bodies, where they read the same fields in different ways. Messages and Responses are chats. */
typedef enum qn_text_exchange_kind {
    QN_CHAT_EXCHANGE,
    QN_COMPLETION_EXCHANGE,
    QN_LLAMA_EXCHANGE
} qn_text_exchange_kind;

/* ---- Choices ---- */

/* A token of the answer whose text was not written yet. */
typedef struct qn_choice_token {
    qn_token token;
    bool is_first; /* of the prompt: it has no log probability */
    size_t offset; /* with log probabilities: complete characters of the answer before it */
} qn_choice_token;

/* One choice of an answer: of one scheduler request. A stream sends its texts at once; without a stream they are
 * collected here. Characters are Unicode code points. */
typedef struct qn_choice {
    qn_bytes text, reasoning; /* text: the content, in chats */
    qn_bytes name, arguments; /* of the open call */
    qn_bytes calls;           /* the complete ones, as JSON values */
    size_t n_calls;           /* complete ones */
    bool has_calls;           /* a call has begun */
    bool is_thinking;         /* the last event was reasoning */
    bool is_tagged;           /* a reasoning tag is open in the text */
    qn_choice_token *tokens;  /* [n_pending] */
    qn_logprobs *logprobs;    /* [n_pending], with log probabilities */
    size_t n_pending, cap_tokens, cap_logprobs;
    size_t n_repeated;   /* of n_pending, tokens of the prompt, which come first */
    qn_account *account; /* of the request, or NULL */
    size_t n_promised;   /* bytes reserved in it for tokens and log probabilities */
    qn_utf8_stream stream;
    double sum;                            /* of the log probabilities of all tokens, if the scheduler has them */
    size_t n_characters;                   /* of all tokens */
    size_t n_sent;                         /* characters of the text so far */
    size_t n_tokens, n_reasoning, n_since; /* all tokens; those of reasoning; those since the last event */
    bool has_reasoning, has_new_line;
    qn_request_result result; /* without its error text */
} qn_choice;

/* qn_choice_init - initialise a zeroed choice. The account is borrowed, and outlives the choice. */
void qn_choice_init(qn_choice *choice, qn_account *account);
void qn_choice_free(qn_choice *choice);

/* qn_choice_take_prompt - keep a token of a prompt that the answer repeats, with its log probabilities. is_last: of the
 * prompt. False: no memory. */
bool qn_choice_take_prompt(qn_choice *choice, const qn_exchange_event *event, const qn_model *model, bool is_last);

/* qn_choice_take_token - count a token and, with `keeps`, keep it, unless it ends the answer by the request's params;
 * after a prompt with log probabilities it is kept in any case. False: no memory. */
bool qn_choice_take_token(qn_choice *choice, const qn_exchange_event *event, const qn_model *model,
                          const qn_request_params *params, bool keeps);

/* qn_choice_take_output - count the text of an output event, before it is written. */
void qn_choice_take_output(qn_choice *choice, const qn_output_event *event);

/* qn_choice_take_text - count a text, before it is written. */
void qn_choice_take_text(qn_choice *choice, const char *text, size_t length);

/* qn_choice_end - record the end of an answer; drops pending tokens of a stop string, which is cut off. */
void qn_choice_end(qn_choice *choice, const qn_request_result *result);

/* qn_choice_ready - returns the number of pending tokens whose text is complete. */
size_t qn_choice_ready(const qn_choice *choice);

/* qn_choice_drop - forget the first n pending tokens. */
void qn_choice_drop(qn_choice *choice, size_t n);

/* qn_finish_reason - returns "stop", "length" or "tool_calls". */
const char *qn_finish_reason(const qn_choice *choice);

/* ---- Exchanges ---- */

/* The format of content that a body asks for. */
typedef struct qn_format {
    bool is_given;
    bool is_choice; /* one of a list of texts; `kind` is ignored */
    qn_grammar_kind kind;
    json_t *source;    /* a reference: the schema, the text of a grammar, or the list; NULL: none */
    const char *field; /* of the body, for refusals */
} qn_format;

/* The tools that a body offers, and how they may be called. */
typedef struct qn_tools {
    json_t *list;     /* a reference: an array as in conversations; NULL: none */
    json_t *called;   /* a reference to the value that `name` points into, or NULL */
    const char *name; /* the function that must be called, or NULL */
    bool is_required, is_single;
} qn_tools;

typedef struct qn_prompt {
    qn_token *tokens; /* [n]; set by parse for prompts of ids, else by bind */
    size_t n, capacity;
    qn_bytes json; /* set by bind if answers repeat the prompt: its text, as a JSON string */
} qn_prompt;

/* The gap of a prompt, which the answer fills: what comes after it. */
typedef struct qn_gap {
    json_t *suffix; /* a reference to the text after it, until bind; NULL: the prompt has no gap */
    json_t *files;  /* a reference to texts of other files, which come before the prompt, or NULL */
    bool cuts;      /* texts are cut to the context */
} qn_gap;

/* The fields of response_fields in a body of /completion, without duplicates. */
enum { QN_LLAMA_MAX_FIELDS = 64, QN_LLAMA_FIELD_BYTES = 128 };
typedef struct qn_llama_field {
    char path[QN_LLAMA_FIELD_BYTES]; /* "prompt", "timings/prompt_n" */
    size_t at, length; /* from bind on: the place of its value in `settings`; length 0: the value is not there */
} qn_llama_field;
typedef struct qn_llama_fields {
    qn_llama_field *list; /* [n] */
    size_t n;
    bool is_given; /* else answers have all fields */
} qn_llama_fields;

/* reasoning_budget of a body that has none, until bind. */
enum { QN_BUDGET_OF_SERVED = -2 };

/* The exchange of all protocols whose answers are generated text. */
typedef struct qn_text_exchange {
    qn_exchange base;
    qn_text_exchange_kind kind;
    qn_protocol_limits limits;
    /* Values of the body. Members of params.sampling that the body does not set are NAN or -1 until bind. */
    qn_request_params params;
    bool has_seed;
    size_t n_choices;      /* per prompt */
    size_t n_best;         /* of these, those that are answered: the ones with the greatest log probabilities */
    json_t *model, *stops; /* references to the values that base.model and `stop` point into */
    const char **stop;
    qn_token *stop_tokens;
    json_t *given_breakers; /* a reference to the value that `breakers` points into */
    const char **breakers;  /* [n_breakers] of DRY, as texts; NULL: the served model's */
    size_t n_breakers;
    qn_token *breaker_tokens; /* from bind on, if DRY is on */
    qn_logit_bias *bias;      /* one per token */
    size_t cap_bias;
    json_t *biases, *prompt; /* as in the body, until bind; a prompt of ids only is in `prompts` */
    qn_gap gap;
    qn_llama_fields fields; /* of /completion */
    qn_bytes settings;      /* of /completion, from bind on: the generation_settings that all choices share */
    qn_format format;
    qn_json_style style; /* of constrained JSON */
    qn_tools tools;
    bool has_usage; /* a stream ends with usage */
    bool has_timings;
    bool has_think_tags;      /* reasoning is part of content, between tags */
    bool has_functions;       /* a call is reported as `function_call` */
    bool is_echo, has_tokens; /* the answer repeats the prompt; it has token ids */
    /* Set by bind. */
    const qn_served *served;
    qn_bytes conversation;
    size_t n_prompt;    /* set by qn_text_exchange_count_prompt */
    qn_prompt *prompts; /* [n_prompts] of completions, set by parse */
    size_t n_prompts;
    qn_choice *choices; /* [base.n_requests] */
    qn_refusal refusal; /* with has_failed */
} qn_text_exchange;

/* ---- Exchanges, openai_exchange.c ---- */

/* qn_text_exchange_alloc - allocate an exchange with one choice, in a structure of `size` bytes that begins with a
 * qn_text_exchange. NULL: refused. */
qn_text_exchange *qn_text_exchange_alloc(size_t size, qn_text_exchange_kind kind, qn_reading *reading,
                                         qn_refusal *refusal);

/* qn_openai_create - create an exchange and read all values of the body that chats and completions share. NULL:
 * refused. */
qn_text_exchange *qn_openai_create(qn_text_exchange_kind kind, const json_t *body, qn_reading *reading,
                                   qn_refusal *refusal);

/* qn_text_exchange_free - member `free` of the qn_protocol, for both. */
void qn_text_exchange_free(qn_exchange *exchange);

/* qn_text_exchange_bind - make the scheduler requests. False: refused. */
bool qn_text_exchange_bind(qn_text_exchange *x, const qn_served *served, qn_refusal *refusal);

/* qn_openai_set_reasoning - set what the server's options say of reasoning, and a conversation does not. False: out of
 * memory. */
bool qn_openai_set_reasoning(json_t *conversation, const qn_served *served);

/* qn_text_exchange_dump_conversation - write the conversation as text and free the other values of the body. False:
 * refused. */
bool qn_text_exchange_dump_conversation(qn_text_exchange *x, qn_refusal *refusal);

/* qn_text_exchange_count_prompt - set n_prompt to the number of tokens of the bound conversation. */
qn_status qn_text_exchange_count_prompt(qn_text_exchange *x);

/* qn_text_exchange_bind_count - member `bind` of protocols that only count a prompt's tokens: no requests. False:
 * refused. */
bool qn_text_exchange_bind_count(qn_exchange *exchange, const qn_served *served, qn_refusal *refusal);

/* qn_text_exchange_take - count an event. An error is written and ends the answer. True: the caller writes the event, a
 * text, a token of a repeated prompt or an end. */
bool qn_text_exchange_take(qn_text_exchange *x, qn_choice *choice, const qn_exchange_event *event, qn_bytes *out);

/* qn_openai_open - begin an object of an answer: id, with a prefix, object, created, model. */
void qn_openai_open(const qn_text_exchange *x, const char *prefix, const char *object, qn_bytes *out);

/* qn_openai_close - end that object: usage, and timings if the body asks for them. */
void qn_openai_close(const qn_text_exchange *x, qn_bytes *out);

/* qn_text_exchange_stop - returns the stop string that ended a choice, or NULL. */
const char *qn_text_exchange_stop(const qn_text_exchange *x, const qn_choice *choice);

/* qn_text_exchange_check_end - whether the answer can be completed. If not, its error is written, unless the stream has
 * it. */
bool qn_text_exchange_check_end(qn_text_exchange *x, qn_bytes *out);

/* qn_llama_begin - member `begin` that writes nothing, for answers that begin with their first event. */
void qn_llama_begin(qn_exchange *exchange, qn_bytes *out);

/* qn_text_exchange_no_event - member `event` of protocols without requests, and so without events. */
void qn_text_exchange_no_event(qn_exchange *exchange, size_t request, const qn_exchange_event *event, qn_bytes *out);

/* qn_openai_fail - member `fail` in OpenAI's form. */
void qn_openai_fail(qn_exchange *exchange, const qn_refusal *refusal, qn_bytes *out);

/* qn_openai_refuse - member `refuse` in OpenAI's form. */
void qn_openai_refuse(const qn_refusal *refusal, qn_bytes *out);

/* qn_text_exchange_model - returns the name of the model in answers: the served model's, before bind the body's, or
 * "". */
const char *qn_text_exchange_model(const qn_text_exchange *x);

/* ---- Parts of bodies. False: refused ---- */

/* qn_openai_params - read sampling, lengths, stop strings and log probabilities. In openai_params.c. */
bool qn_openai_params(qn_text_exchange *x, const json_t *body, qn_refusal *refusal);

/* qn_refuse_unsupported - refuse fields of other servers that would change an answer but are not supported. In
 * openai_unsupported.c. */
bool qn_refuse_unsupported(const json_t *body, bool is_chat, qn_refusal *refusal);

/* qn_openai_take_dry - read the values of DRY; those that the body does not have are -1 or NAN in params.sampling. In
 * openai_dry.c. */
bool qn_openai_take_dry(qn_text_exchange *x, const json_t *body, qn_refusal *refusal);

/* qn_openai_bind_dry - tokenise DRY's breakers; params.sampling is complete. */
bool qn_openai_bind_dry(qn_text_exchange *x, qn_refusal *refusal);

/* qn_openai_breakers - returns DRY's breakers as texts [*n]. */
const char *const *qn_openai_breakers(const qn_text_exchange *x, size_t *n);

/* qn_openai_check_samplers - whether `samplers` has only names or letters of llama.cpp's samplers. In
 * openai_samplers.c. */
bool qn_openai_check_samplers(const json_t *body, qn_refusal *refusal);

/* qn_openai_take_model - read the model's name: *model becomes a new reference to it, NULL if there is none. */
bool qn_openai_take_model(const json_t *body, json_t **model, qn_refusal *refusal);

/* qn_openai_common - read the values that all protocols have: the model's name, `stream`, sampling. */
bool qn_openai_common(qn_text_exchange *x, const json_t *body, qn_refusal *refusal);

/* qn_openai_take_stop - read the stop strings, from the field `name`. */
bool qn_openai_take_stop(qn_text_exchange *x, const json_t *body, const char *name, qn_refusal *refusal);

/* qn_openai_bind_params - fill in the served model's defaults and check values that depend on the model. */
bool qn_openai_bind_params(qn_text_exchange *x, qn_refusal *refusal);

/* qn_openai_conversation - read the conversation of a chat. Returns a new reference, whose messages and tools are
 * values of the body; NULL: refused. In openai_messages.c. */
json_t *qn_openai_conversation(const json_t *body, qn_reading *reading, qn_refusal *refusal);

/* qn_openai_arguments - returns the arguments of a call as an object, a new reference; the caller keeps that to
 * `given`. Text is parsed, and counts as values of the body; arguments that are not an object, such as those of a call
 * that was cut, become an object with one member, so that the conversation can continue. NULL: see
 * qn_reading_refuse. */
json_t *qn_openai_arguments(json_t *given, qn_reading *reading);

/* qn_openai_take_functions - rewrite `functions` and `function_call` of a body and its messages as tools and tool
 * calls, before anything else of the body is read. is_legacy: the answer is to have the older form. In
 * openai_functions.c. */
bool qn_openai_take_functions(json_t *body, bool *is_legacy, qn_reading *reading, qn_refusal *refusal);

/* qn_openai_name_functions - rename the field of a refusal of tools to that of the older form. */
void qn_openai_name_functions(qn_refusal *refusal);

/* qn_openai_check_function - check the function of tool number `index`; none of the first n_before of `tools` may have
 * its name. */
bool qn_openai_check_function(const json_t *function, size_t index, const json_t *tools, size_t n_before,
                              qn_refusal *refusal);

/* qn_openai_check_count - check the number of messages or of tools, whichever `name` says, against the limits. */
bool qn_openai_check_count(size_t n, const char *name, const qn_protocol_limits *limits, qn_refusal *refusal);

/* qn_openai_take_effort - check a reasoning effort, one of qn_effort_levels, and set `reasoning_effort` of the
 * conversation to it, with a reference of its own; the caller keeps that to `effort`, which is not NULL. `name`: its
 * field, for refusals. */
bool qn_openai_take_effort(json_t *effort, const char *name, json_t *conversation, qn_refusal *refusal);

/* qn_openai_take_variables - read reasoning_effort, enable_thinking and chat_template_kwargs into the conversation,
 * which takes references to their values. */
bool qn_openai_take_variables(const json_t *body, json_t *conversation, qn_refusal *refusal);

/* qn_openai_take_format - read the fields that set the format of content and how JSON is written. In
 * openai_format.c. */
bool qn_openai_take_format(qn_text_exchange *x, const json_t *body, qn_reading *reading, qn_refusal *refusal);

/* qn_openai_take_schema - set a JSON schema as the format, with a reference of its own. `field` is its field: a static
 * string, which refusals name. */
bool qn_openai_take_schema(qn_text_exchange *x, json_t *schema, bool is_strict, const char *field, qn_refusal *refusal);

/* qn_openai_compile_format - compile the format into params.grammar. */
bool qn_openai_compile_format(qn_text_exchange *x, qn_refusal *refusal);

/* qn_openai_take_constraints - read the format, tools and tool_choice. In openai_constrain.c. */
bool qn_openai_take_constraints(qn_text_exchange *x, const json_t *body, qn_reading *reading, qn_refusal *refusal);

/* qn_openai_call - require a call of the function `name`, of which the exchange takes a reference of its own; a value
 * that is no string, or NULL: of none, which qn_openai_check_tools refuses. */
void qn_openai_call(qn_text_exchange *x, json_t *name);

/* qn_openai_allow - allow calls only of the tools in `allowed`. */
bool qn_openai_allow(qn_text_exchange *x, const json_t *allowed, qn_refusal *refusal);

/* qn_openai_check_tools - check that tools, tool_choice and the format go together. */
bool qn_openai_check_tools(const qn_text_exchange *x, qn_refusal *refusal);

/* qn_openai_constrain - compile the grammar of format and tools into params.grammar. */
bool qn_openai_constrain(qn_text_exchange *x, qn_refusal *refusal);

/* qn_openai_check_prompts - read the prompts of a completion. In openai_prompts.c. */
bool qn_openai_check_prompts(qn_text_exchange *x, const json_t *body, qn_refusal *refusal);

/* qn_openai_bind_prompts - tokenise the prompts. */
bool qn_openai_bind_prompts(qn_text_exchange *x, qn_refusal *refusal);

/* qn_openai_take_suffix - read `suffix` of a completion. In infill.c. */
bool qn_openai_take_suffix(qn_text_exchange *x, const json_t *body, qn_refusal *refusal);

/* qn_openai_take_gap - read input_suffix and input_extra of /infill. */
bool qn_openai_take_gap(qn_text_exchange *x, const json_t *body, qn_refusal *refusal);

/* qn_openai_check_infill - whether the model can fill the gap, if there is one. */
bool qn_openai_check_infill(const qn_text_exchange *x, qn_refusal *refusal);

/* qn_openai_bind_gap - put a prompt, the tokens before the gap, between the model's tokens. */
bool qn_openai_bind_gap(const qn_text_exchange *x, qn_prompt *prompt, qn_refusal *refusal);

/* qn_openai_prompt_of - returns the prompt of a request. */
const qn_prompt *qn_openai_prompt_of(const qn_text_exchange *x, size_t request);

/* qn_openai_prompt_json - returns the prompt of a request as a JSON string. */
const qn_bytes *qn_openai_prompt_json(const qn_text_exchange *x, size_t request);

/* qn_openai_check_repeats - whether there is memory for an answer in which each choice repeats its prompt and
 * `settings` bytes of settings. */
bool qn_openai_check_repeats(const qn_text_exchange *x, size_t settings, qn_refusal *refusal);

/* qn_openai_take_ids - append the tokens of a list of ids to a prompt and empty the list, whose values may be large. A
 * refusal names `field`. */
bool qn_openai_take_ids(json_t *ids, const char *field, qn_account *account, qn_prompt *prompt, qn_refusal *refusal);

/* ---- Parts of answers ---- */

/* qn_openai_logprob_entries - write the log probabilities of the first n pending tokens as objects, with ids for
 * /completion. In openai_logprobs.c. */
void qn_openai_logprob_entries(const qn_text_exchange *x, const qn_choice *choice, size_t n, qn_bytes *out);

/* qn_openai_logprob_list - the same, as an array. */
void qn_openai_logprob_list(const qn_text_exchange *x, const qn_choice *choice, size_t n, qn_bytes *out);

/* qn_openai_chat_logprobs - the same, in the form of chats. */
void qn_openai_chat_logprobs(const qn_text_exchange *x, const qn_choice *choice, size_t n, qn_bytes *out);

/* qn_openai_completion_logprobs - the same, in the form of completions. */
void qn_openai_completion_logprobs(const qn_text_exchange *x, const qn_choice *choice, size_t n, qn_bytes *out);

/* qn_openai_usage - write the member `usage`. In openai_usage.c. */
void qn_openai_usage(const qn_text_exchange *x, qn_bytes *out);

/* qn_llama_timings - write the member `timings`. */
void qn_llama_timings(const qn_choice *choice, qn_bytes *out);

/* qn_llama_progress - write the member `prompt_progress`. */
void qn_llama_progress(const qn_prompt_progress *progress, qn_bytes *out);

/* qn_llama_write_timings - write only the value of `timings`. */
void qn_llama_write_timings(const qn_choice *choice, qn_bytes *out);

#endif
