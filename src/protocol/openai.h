/* The protocols of OpenAI's form, and of llama-server's, and what they share: the values of a body, choices that
 * collect what requests answer, and pieces of answers. */
#ifndef QN_PROTOCOL_OPENAI_H
#define QN_PROTOCOL_OPENAI_H

#include "quern/grammar.h"
#include "protocol/json_body.h"
#include "text/utf8_stream.h"

extern const qn_protocol qn_openai_chat, qn_openai_completion, qn_openai_chat_count, qn_responses_count, qn_llama_completion,
    qn_llama_tokenize, qn_llama_detokenize, qn_llama_template;

/* How protocols differ where they read the same fields. */
typedef enum qn_openai_kind { QN_OPENAI_CHAT, QN_OPENAI_COMPLETION, QN_LLAMA_COMPLETION } qn_openai_kind;

/* ---- Choices ---- */

/* A token of an answer that is in no part of it yet. */
typedef struct qn_choice_token {
    qn_token token;
    size_t offset; /* characters of the text that are complete before it, with log probabilities */
} qn_choice_token;

/* One of the answers. In a stream texts are sent as they come, else they are collected. */
typedef struct qn_choice {
    qn_bytes text, reasoning; /* of chats, text is the content */
    qn_bytes name, arguments; /* of the call that comes */
    qn_bytes calls;           /* that have ended, values of JSON */
    size_t n_calls;           /* complete ones */
    bool has_calls;           /* one has begun */
    bool is_thinking;         /* the last event was reasoning */
    bool is_tagged;           /* a tag of reasoning is open in the text */
    qn_choice_token *tokens;  /* [n_pending] */
    qn_logprobs *logprobs;    /* [n_pending], with log probabilities */
    size_t n_pending, cap_tokens, cap_logprobs;
    qn_account *account; /* of the request, or NULL */
    size_t n_promised;   /* bytes of it for tokens and log probabilities */
    qn_utf8_stream stream;
    size_t n_characters;                   /* of all tokens */
    size_t n_sent;                         /* characters of the text that came */
    size_t n_tokens, n_reasoning, n_since; /* all; of reasoning; since the last event */
    bool has_reasoning, has_new_line;
    qn_request_result result; /* without its error text */
} qn_choice;

/* qn_choice_init - of one that is zeroed. */
void qn_choice_init(qn_choice *choice, qn_account *account);
void qn_choice_free(qn_choice *choice);

/* qn_choice_take_token - count a token, and with `keeps` keep it, unless it ends the answer by the request's params. False
 * without memory. qn_choice_take_output, qn_choice_take_text - count a text, before it is written. */
bool qn_choice_take_token(qn_choice *choice, const qn_exchange_event *event, const qn_model *model,
                          const qn_request_params *params, bool keeps);
void qn_choice_take_output(qn_choice *choice, const qn_output_event *event);
void qn_choice_take_text(qn_choice *choice, const char *text, size_t length);

/* qn_choice_end - the end of an answer: pending tokens of a stop string, which is cut off, are dropped. */
void qn_choice_end(qn_choice *choice, const qn_request_result *result);

/* qn_choice_ready - how many of the pending tokens belong to the text that has come. qn_choice_drop - forget as many. */
size_t qn_choice_ready(const qn_choice *choice);
void qn_choice_drop(qn_choice *choice, size_t n);

/* qn_finish_reason - "stop", "length" or "tool_calls". */
const char *qn_finish_reason(const qn_choice *choice);

/* ---- Exchanges ---- */

/* The form of content that a body asks for. */
typedef struct qn_format {
    bool is_given;
    bool is_choice; /* one of a list of texts, whatever the kind */
    qn_grammar_kind kind;
    json_t *source;    /* a reference: the schema, the text of a grammar, or the list; NULL: none */
    const char *field; /* of the body, for refusals */
} qn_format;

/* The calls that a body allows. */
typedef struct qn_tools {
    json_t *list;     /* a reference, an array as that of a conversation; NULL: none */
    json_t *called;   /* a reference to what `name` points into, or NULL */
    const char *name; /* of the function that must be called, or NULL */
    bool is_required, is_single;
} qn_tools;

typedef struct qn_prompt {
    qn_token *tokens; /* [n]; those of ids are there from parse on */
    size_t n, capacity;
    qn_bytes json; /* from bind on, where answers repeat it: its text, as a string of JSON */
} qn_prompt;

/* The fields that a body of /completion asks for, each once. */
enum { QN_LLAMA_MAX_FIELDS = 64, QN_LLAMA_FIELD_BYTES = 128 };
typedef struct qn_llama_field {
    char path[QN_LLAMA_FIELD_BYTES]; /* "prompt", "timings/prompt_n" */
    size_t at, length; /* of a value that all choices have, from bind on: where `settings` has it; 0: it is another */
} qn_llama_field;
typedef struct qn_llama_fields {
    qn_llama_field *list; /* [n] */
    size_t n;
    bool is_given; /* else all of an answer */
} qn_llama_fields;

typedef struct qn_openai {
    qn_exchange base;
    qn_openai_kind kind;
    qn_protocol_limits limits;
    /* Of the body. What `params.sampling` does not have from it is NAN or -1. */
    qn_request_params params;
    bool has_seed;
    size_t n_choices;      /* for each prompt */
    json_t *model, *stops; /* references to what base.model and stop point into */
    const char **stop;
    qn_token *stop_tokens;
    json_t *given_breakers; /* a reference to what `breakers` points into */
    const char **breakers;  /* [n_breakers] of DRY, as texts; NULL: the served model's */
    size_t n_breakers;
    qn_token *breaker_tokens; /* from bind on, where DRY is on */
    qn_logit_bias *bias;      /* one of each token */
    size_t cap_bias;
    json_t *biases, *prompt; /* as the body has them, until bind; a prompt of ids alone is in `prompts` */
    qn_llama_fields fields;  /* of /completion */
    qn_bytes settings;       /* of /completion, from bind on: what all choices have of generation_settings */
    qn_format format;
    qn_json_style style; /* of constrained JSON */
    qn_tools tools;
    bool has_usage; /* a stream ends with usage */
    bool has_timings;
    bool has_think_tags;      /* reasoning is content, between tags */
    bool has_functions;       /* a call is `function_call` */
    bool is_echo, has_tokens; /* the answer repeats the prompt; has token ids */
    /* From bind on. */
    const qn_served *served;
    qn_bytes conversation;
    size_t n_prompt;    /* of qn_openai_count_prompt */
    qn_prompt *prompts; /* [n_prompts] of completions, from parse on */
    size_t n_prompts;
    qn_choice *choices; /* [base.n_requests] */
    qn_refusal refusal; /* with has_failed */
} qn_openai;

/* ---- Exchanges, openai_exchange.c ---- */

/* qn_openai_alloc - an exchange of one choice, of a structure of this size that begins with a qn_openai. qn_openai_create - with
 * all values of a body that chats and completions share. NULL: refused. qn_openai_free frees either. */
qn_openai *qn_openai_alloc(size_t size, qn_openai_kind kind, qn_reading *reading, qn_refusal *refusal);
qn_openai *qn_openai_create(qn_openai_kind kind, const json_t *body, qn_reading *reading, qn_refusal *refusal);
void qn_openai_free(qn_exchange *exchange);

/* qn_openai_bind - make the requests. qn_openai_dump_conversation - the conversation as text, after
 * which nothing else of the body is there. False: refused. */
bool qn_openai_bind(qn_openai *x, const qn_served *served, qn_refusal *refusal);
bool qn_openai_dump_conversation(qn_openai *x, qn_refusal *refusal);

/* qn_openai_count_prompt - the tokens of a conversation that is bound. qn_openai_bind_count - of a protocol that counts them: no
 * requests. False: refused. */
qn_status qn_openai_count_prompt(qn_openai *x);
bool qn_openai_bind_count(qn_exchange *exchange, const qn_served *served, qn_refusal *refusal);

/* qn_openai_take - count what came; an error is written, and ends the answer. True: the event is a text or an end to write. */
bool qn_openai_take(qn_openai *x, qn_choice *choice, const qn_exchange_event *event, qn_bytes *out);

/* qn_openai_open - the beginning of an object of an answer, whose id has a prefix: id, object, created, model.
 * qn_openai_close - its end: usage, and timings where the body asks for them. */
void qn_openai_open(const qn_openai *x, const char *prefix, const char *object, qn_bytes *out);
void qn_openai_close(const qn_openai *x, qn_bytes *out);

/* qn_openai_stop - the stop string that ended a choice, or NULL. */
const char *qn_openai_stop(const qn_openai *x, const qn_choice *choice);

/* qn_openai_check_end - whether the answer can be completed; else its error is written, unless a stream has it. */
bool qn_openai_check_end(qn_openai *x, qn_bytes *out);

/* Functions of a qn_protocol. qn_llama_begin - nothing: the first event begins the answer. qn_openai_no_event - without requests
 * there are none. */
void qn_llama_begin(qn_exchange *exchange, qn_bytes *out);
void qn_openai_no_event(qn_exchange *exchange, size_t request, const qn_exchange_event *event, qn_bytes *out);
void qn_openai_fail(qn_exchange *exchange, const qn_refusal *refusal, qn_bytes *out);
void qn_openai_refuse(const qn_refusal *refusal, qn_bytes *out);

/* The name of the model in answers; before bind, that of the body or "". */
const char *qn_openai_model(const qn_openai *x);

/* ---- Parts of bodies; false: refused ---- */

/* openai_params.c: sampling, lengths, stop strings, log probabilities. */
bool qn_openai_params(qn_openai *x, const json_t *body, qn_refusal *refusal);

/* qn_refuse_unsupported - fields of other servers that would change an answer, and are not there. openai_unsupported.c. */
bool qn_refuse_unsupported(const json_t *body, bool is_chat, qn_refusal *refusal);

/* qn_openai_take_dry - the values of DRY, of which sampling has what bodies do not have as -1 or NAN. qn_openai_bind_dry - what breakers
 * are as tokens, where sampling is complete. qn_openai_breakers - the texts. openai_dry.c. */
bool qn_openai_take_dry(qn_openai *x, const json_t *body, qn_refusal *refusal);
bool qn_openai_bind_dry(qn_openai *x, qn_refusal *refusal);
const char *const *qn_openai_breakers(const qn_openai *x, size_t *n);

/* qn_openai_check_samplers - whether `samplers` names what llama.cpp has. openai_samplers.c. */
bool qn_openai_check_samplers(const json_t *body, qn_refusal *refusal);

/* What all protocols have: the model's name, whether it is a stream, sampling; stop strings, in a field of any name.
 * qn_openai_take_model - the name alone; NULL: there is none. */
bool qn_openai_take_model(const json_t *body, json_t **model, qn_refusal *refusal);
bool qn_openai_common(qn_openai *x, const json_t *body, qn_refusal *refusal);
bool qn_openai_take_stop(qn_openai *x, const json_t *body, const char *name, qn_refusal *refusal);
bool qn_openai_bind_params(qn_openai *x, qn_refusal *refusal);

/* openai_messages.c: the conversation of a chat. NULL: refused. */
json_t *qn_openai_conversation(const json_t *body, qn_reading *reading, qn_refusal *refusal);

/* qn_openai_arguments - the object that arguments of a call are, which may be its text, counted with the values of the body; NULL:
 * see qn_reading_refuse. What is no object, as of a call that was cut, is an argument of its own: the conversation goes on. */
json_t *qn_openai_arguments(json_t *given, qn_reading *reading);

/* qn_openai_take_functions - `functions` and `function_call`, of a body and of its messages, become tools and calls of them, before
 * anything else of the body is read. is_legacy: the answer is to have their form. False: refused. qn_openai_name_functions - a
 * refusal of tools as one of those fields. openai_functions.c. */
bool qn_openai_take_functions(json_t *body, bool *is_legacy, qn_reading *reading, qn_refusal *refusal);
void qn_openai_name_functions(qn_refusal *refusal);

/* Its parts: a function of the tool of an index, whose name none of the first n_before of `tools` may have; the limits on numbers of messages and tools; reasoning_effort, in a field of any
 * name. */
bool qn_openai_check_function(const json_t *function, size_t index, const json_t *tools, size_t n_before, qn_refusal *refusal);
bool qn_openai_check_count(size_t n, const char *name, const qn_protocol_limits *limits, qn_refusal *refusal);
bool qn_openai_take_effort(json_t *effort, const char *name, json_t *conversation, qn_refusal *refusal);

/* qn_openai_take_variables - reasoning_effort, enable_thinking and chat_template_kwargs of a body. */
bool qn_openai_take_variables(const json_t *body, json_t *conversation, qn_refusal *refusal);

/* openai_format.c: the format of content, and how JSON is written, by the fields of a body; by a schema in a field of any name. Its
 * grammar becomes the requests'. */
bool qn_openai_take_format(qn_openai *x, const json_t *body, qn_reading *reading, qn_refusal *refusal);
bool qn_openai_take_schema(qn_openai *x, json_t *schema, bool is_strict, const char *field, qn_refusal *refusal);
bool qn_openai_compile_format(qn_openai *x, qn_refusal *refusal);

/* openai_constrain.c: what answers may be, by OpenAI's fields; whether format and tools go together. */
bool qn_openai_take_constraints(qn_openai *x, const json_t *body, qn_reading *reading, qn_refusal *refusal);
void qn_openai_call(qn_openai *x, json_t *name); /* the function of this name must be called; NULL: of none */
bool qn_openai_allow(qn_openai *x, const json_t *allowed, qn_refusal *refusal); /* of the tools only these may be called */
bool qn_openai_check_tools(const qn_openai *x, qn_refusal *refusal);
bool qn_openai_constrain(qn_openai *x, qn_refusal *refusal);

/* openai_prompts.c: prompts of completions. qn_openai_prompt_json - the prompt of a choice, as a string of JSON. */
bool qn_openai_check_prompts(qn_openai *x, const json_t *body, qn_refusal *refusal);
bool qn_openai_bind_prompts(qn_openai *x, qn_refusal *refusal);
const qn_bytes *qn_openai_prompt_json(const qn_openai *x, size_t request);

/* qn_openai_check_repeats - whether there is memory for an answer in which each choice repeats its prompt, and settings of a length.
 * False: refused. */
bool qn_openai_check_repeats(const qn_openai *x, size_t settings, qn_refusal *refusal);

/* qn_openai_take_ids - the tokens of a list of ids, which is emptied. False: refused, naming the field. */
bool qn_openai_take_ids(json_t *ids, const char *field, qn_account *account, qn_prompt *prompt, qn_refusal *refusal);

/* ---- Parts of answers ---- */

/* openai_logprobs.c: log probabilities of the first n pending tokens. qn_openai_logprob_list - as a list of objects, those of
 * /completion with ids; qn_openai_logprob_entries - without its brackets. */
void qn_openai_logprob_entries(const qn_openai *x, const qn_choice *choice, size_t n, qn_bytes *out);
void qn_openai_logprob_list(const qn_openai *x, const qn_choice *choice, size_t n, qn_bytes *out);
void qn_openai_chat_logprobs(const qn_openai *x, const qn_choice *choice, size_t n, qn_bytes *out);
void qn_openai_completion_logprobs(const qn_openai *x, const qn_choice *choice, size_t n, qn_bytes *out);

/* openai_usage.c: members of an object. */
void qn_openai_usage(const qn_openai *x, qn_bytes *out);
void qn_llama_timings(const qn_choice *choice, qn_bytes *out);
void qn_llama_write_timings(const qn_choice *choice, qn_bytes *out); /* the value alone */

#endif
