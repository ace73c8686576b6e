/* /v1/completions: texts that are continued, answered at once or as a stream of chunks. */
#include "protocol/openai.h"

static bool check(qn_text_exchange *x, const json_t *body, qn_refusal *refusal)
{
    if (!qn_field_bool(body, "echo", &x->is_echo, refusal) || !qn_openai_take_suffix(x, body, refusal))
        return false;
    x->params.n_prompt_logprobs = x->is_echo ? x->params.n_logprobs : -1;
    return qn_openai_check_prompts(x, body, refusal);
}

static qn_exchange *parse(json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    qn_text_exchange *x = qn_openai_create(QN_COMPLETION_EXCHANGE, body, reading, refusal);
    if (!x || check(x, body, refusal))
        return x ? &x->base : NULL;
    qn_text_exchange_free(&x->base);
    return NULL;
}

static bool bind(qn_exchange *exchange, const qn_served *served, qn_refusal *refusal)
{
    qn_text_exchange *x = (qn_text_exchange *)exchange;
    return qn_text_exchange_bind(x, served, refusal) && (!x->is_echo || qn_openai_check_repeats(x, 0, refusal));
}

/* ---- Chunks ---- */

static void open_object(const qn_text_exchange *x, qn_bytes *out)
{
    qn_openai_open(x, "cmpl-", "text_completion", out);
    qn_json_key(out, "choices");
    qn_json_open(out, '[');
}

/* Writes a text, after its prompt if that is repeated; `prompt` is a JSON string. */
static void write_text(const qn_bytes *prompt, const char *text, size_t length, qn_bytes *out)
{
    if (prompt)
        qn_bytes_add(out, prompt->data, prompt->length - 1); /* without its last quote */
    else
        qn_bytes_add(out, "\"", 1);
    qn_json_escaped(out, text, length);
    qn_bytes_add(out, "\"", 1);
}

/* Writes choice `index`, which has the index `number` in the answer, with the log probabilities of its first n pending
 * tokens. */
static void write_choice(const qn_text_exchange *x, size_t index, size_t number, const qn_bytes *prompt,
                         const char *text, size_t length, size_t n, const char *finish_reason, qn_bytes *out)
{
    const qn_choice *choice = &x->choices[index];
    qn_json_open(out, '{');
    qn_json_member_integer(out, "index", (int64_t)number);
    qn_json_key(out, "text");
    write_text(prompt, text, length, out);
    qn_json_key(out, "logprobs");
    if (x->params.n_logprobs >= 0)
        qn_openai_completion_logprobs(x, choice, n, out);
    else
        qn_json_null(out);
    qn_json_member_string(out, "finish_reason", finish_reason);
    qn_json_close(out, '}');
}

/* Sends a chunk with the tokens whose text is complete; with a finish_reason, with all. */
static void send_chunk(const qn_text_exchange *x, size_t index, const qn_bytes *prompt, const char *text, size_t length,
                       const char *finish_reason, qn_bytes *out)
{
    qn_choice *choice = &x->choices[index];
    const size_t n = finish_reason ? choice->n_pending : qn_choice_ready(choice);
    qn_bytes_print(out, "data: ");
    open_object(x, out);
    write_choice(x, index, index, prompt, text, length, n, finish_reason, out);
    qn_choice_drop(choice, n);
    qn_json_close(out, ']');
    if (x->has_usage) {
        qn_json_key(out, "usage");
        qn_json_null(out);
    }
    if (x->has_timings && finish_reason && !x->has_usage)
        qn_llama_timings(choice, out);
    qn_bytes_print(out, "}\n\n");
}

static void add_text(const qn_text_exchange *x, size_t index, const char *text, size_t length, qn_bytes *out)
{
    if (x->base.is_stream)
        send_chunk(x, index, NULL, text, length, NULL, out);
    else
        qn_bytes_add(&x->choices[index].text, text, length);
}

/* Sends the prompt once the log probabilities of all its tokens are there; n: so far. Only for a stream. */
static void repeat_prompt(const qn_text_exchange *x, size_t request, size_t n, qn_bytes *out)
{
    const qn_prompt *prompt = qn_openai_prompt_of(x, request);
    if (x->base.is_stream && n == prompt->n)
        send_chunk(x, request, &prompt->json, "", 0, NULL, out);
}

static void begin(qn_exchange *exchange, qn_bytes *out)
{
    const qn_text_exchange *x = (const qn_text_exchange *)exchange;
    if (x->params.n_prompt_logprobs >= 0) /* then the prompt is sent with its log probabilities */
        return;
    for (size_t i = 0; x->is_echo && x->base.is_stream && i < x->base.n_requests; i++)
        send_chunk(x, i, qn_openai_prompt_json(x, i), "", 0, NULL, out);
}

static void event(qn_exchange *exchange, size_t request, const qn_exchange_event *event, qn_bytes *out)
{
    qn_text_exchange *x = (qn_text_exchange *)exchange;
    qn_choice *choice = &x->choices[request];
    if (!qn_text_exchange_take(x, choice, event, out))
        return;
    if (event->kind == QN_EXCHANGE_TEXT)
        add_text(x, request, event->text, event->length, out);
    else if (event->kind == QN_EXCHANGE_PROMPT)
        repeat_prompt(x, request, event->index + 1, out);
    else if (event->kind == QN_EXCHANGE_END && x->base.is_stream)
        send_chunk(x, request, NULL, "", 0, qn_finish_reason(choice), out);
}

/* ---- The end ---- */

/* Returns the mean of a choice's log probabilities, as OpenAI compares choices: "the highest log probability per
 * token". */
static double mean_of(const qn_choice *choice)
{
    return choice->n_tokens ? choice->sum / (double)choice->n_tokens : 0;
}

/* Whether fewer than n_best choices of the same prompt are better; of equal ones the first is. */
static bool is_best(const qn_text_exchange *x, size_t index)
{
    const size_t first = index / x->n_choices * x->n_choices;
    const double own = mean_of(&x->choices[index]);
    size_t n_better = 0;
    for (size_t i = first; i < first + x->n_choices; i++) {
        const double other = mean_of(&x->choices[i]);
        n_better += other > own || (other == own && i < index);
    }
    return n_better < x->n_best;
}

static int end(qn_exchange *exchange, qn_bytes *out)
{
    qn_text_exchange *x = (qn_text_exchange *)exchange;
    const bool is_stream = x->base.is_stream;
    if (!qn_text_exchange_check_end(x, out))
        return x->refusal.status;
    if (!is_stream || x->has_usage) {
        qn_bytes_print(out, "%s", is_stream ? "data: " : "");
        open_object(x, out);
        for (size_t i = 0, number = 0; !is_stream && i < x->base.n_requests; i++) {
            const qn_choice *choice = &x->choices[i];
            const qn_bytes *prompt = x->is_echo ? qn_openai_prompt_json(x, i) : NULL;
            if (is_best(x, i))
                write_choice(x, i, number++, prompt, choice->text.data, choice->text.length, choice->n_pending,
                             qn_finish_reason(choice), out);
        }
        qn_json_close(out, ']');
        qn_openai_close(x, out);
        qn_bytes_print(out, "%s", is_stream ? "\n\n" : "");
    }
    if (is_stream)
        qn_bytes_print(out, "data: [DONE]\n\n");
    return 200;
}

static const char *const paths[] = { "/v1/completions", NULL };

const qn_protocol qn_openai_completion = { .paths = paths,
                                           .keep_alive = ":\n\n",
                                           .parse = parse,
                                           .bind = bind,
                                           .begin = begin,
                                           .event = event,
                                           .end = end,
                                           .fail = qn_openai_fail,
                                           .refuse = qn_openai_refuse,
                                           .free = qn_text_exchange_free };
