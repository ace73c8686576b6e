/* Answers bodies without HTTP, for tests/server/check_protocol.py: protocol_lines MODEL [TEMPLATE] reads lines of JSON
 * {"path": text, "body": text} and prints for each one line, {"status": 200, "pieces": [text, ...]}: what each call of
 * the protocol has appended. "limits" of a line are those of qn_protocol_limits, and `max_tokens` of an answer [64] and
 * `n_ctx` [512]. "is_kept": the scheduler of the first such line answers it, with its context, and what prompts share
 * is computed once. */
#include "protocol/protocol.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 512 };

typedef struct conversation {
    qn_exchange *exchange;
    qn_bytes out;
    size_t n_taken; /* bytes of `out` that are in pieces */
    json_t *pieces;
} conversation;

typedef struct slot {
    conversation *c;
    size_t index;
} slot;

static void take_piece(conversation *c)
{
    if (c->out.length > c->n_taken)
        json_array_append_new(c->pieces, json_stringn(c->out.data + c->n_taken, c->out.length - c->n_taken));
    c->n_taken = c->out.length;
}

static bool pass(void *user, const qn_exchange_event *event)
{
    const slot *s = user;
    s->c->exchange->protocol->event(s->c->exchange, s->index, event, &s->c->out);
    take_piece(s->c);
    return !s->c->exchange->has_failed;
}

static bool on_token(void *user, qn_token token, const qn_logprobs *logprobs)
{
    return pass(user, &(qn_exchange_event){ .kind = QN_EXCHANGE_TOKEN, .token = token, .logprobs = logprobs });
}

static bool on_prompt_token(void *user, size_t index, qn_token token, const qn_logprobs *logprobs)
{
    return pass(
        user, &(qn_exchange_event){ .kind = QN_EXCHANGE_PROMPT, .index = index, .token = token, .logprobs = logprobs });
}

static bool on_text(void *user, const char *text, size_t length)
{
    return pass(user, &(qn_exchange_event){ .kind = QN_EXCHANGE_TEXT, .text = text, .length = length });
}

static bool on_event(void *user, const qn_output_event *event)
{
    return pass(user, &(qn_exchange_event){ .kind = QN_EXCHANGE_OUTPUT, .output = event });
}

static bool on_progress(void *user, const qn_prompt_progress *progress)
{
    return pass(user, &(qn_exchange_event){ .kind = QN_EXCHANGE_PROGRESS, .progress = progress });
}

static bool on_embedding(void *user, const float *embedding, size_t n)
{
    return pass(user, &(qn_exchange_event){ .kind = QN_EXCHANGE_EMBEDDING, .embedding = embedding, .length = n });
}

static void on_end(void *user, const qn_request_result *result)
{
    (void)pass(user, &(qn_exchange_event){ .kind = QN_EXCHANGE_END, .result = result });
}

/* False: the scheduler has refused one of the requests. */
static bool submit(conversation *c, slot *slots, const qn_served *served, qn_scheduler *scheduler, qn_refusal *refusal)
{
    for (size_t i = 0; i < c->exchange->n_requests; i++) {
        qn_request_params *params = &c->exchange->requests[i];
        slots[i] = (slot){ c, i };
        params->on_prompt_token = on_prompt_token;
        params->on_token = on_token;
        params->on_text = c->exchange->has_events || params->pooling ? NULL : on_text;
        params->on_event = c->exchange->has_events ? on_event : NULL;
        params->on_progress = c->exchange->has_progress ? on_progress : NULL;
        params->on_embedding = params->pooling ? on_embedding : NULL;
        params->on_end = on_end;
        params->user = &slots[i];
    }
    qn_submit_refusal refused = QN_SUBMIT_REFUSAL_INIT;
    const qn_status status =
        qn_scheduler_submit_all(scheduler, c->exchange->requests, c->exchange->n_requests, NULL, &refused);
    if (status != QN_OK)
        qn_exchange_refuse_status(served, status, refused.n_prompt, refusal);
    return status == QN_OK;
}

/* kept: a scheduler for this request and others, NULL before the first of them; or NULL: one for this request alone. */
static int run(conversation *c, const qn_served *served, qn_scheduler **kept, qn_refusal *refusal)
{
    qn_scheduler *scheduler = kept ? *kept : NULL;
    const qn_scheduler_params params = { .size = sizeof(qn_scheduler_params),
                                         .n_ctx = served->n_ctx,
                                         .no_thread = true };
    slot *slots = calloc(c->exchange->n_requests + 1, sizeof *slots);
    if (!slots || (!scheduler && qn_scheduler_create(served->model, &params, &scheduler)))
        exit(2);
    const bool done = submit(c, slots, served, scheduler, refusal);
    int status = 0;
    if (done) {
        c->exchange->protocol->begin(c->exchange, &c->out);
        take_piece(c);
        qn_scheduler_wait(scheduler);
        status = c->exchange->protocol->end(c->exchange, &c->out);
        take_piece(c);
    }
    if (!done)
        c->exchange->has_failed = true; /* what was submitted is cancelled, and not to be seen */
    if (kept)
        *kept = scheduler;
    else
        qn_scheduler_free(scheduler);
    free(slots);
    return done ? status : -refusal->status;
}

static uint32_t limit(const json_t *line, const char *name)
{
    return (uint32_t)json_integer_value(json_object_get(json_object_get(line, "limits"), name));
}

static json_t *answer(const json_t *line, const qn_served *served_by_default, qn_scheduler **kept)
{
    qn_served own = *served_by_default;
    const qn_served *served = &own;
    const json_t *body = json_object_get(line, "body");
    const qn_protocol *protocol = qn_protocol_find(json_string_value(json_object_get(line, "path")));
    const qn_exchange_origin origin = { .id = "0123", .secret = "secret", .created = 1700000000, .seed = 1 };
    const qn_protocol_limits limits = { .depth = limit(line, "depth"),
                                        .messages = limit(line, "messages"),
                                        .tools = limit(line, "tools"),
                                        .stops = limit(line, "stops"),
                                        .stop_bytes = limit(line, "stop_bytes"),
                                        .requests = limit(line, "requests"),
                                        .inputs = limit(line, "inputs"),
                                        .biases = limit(line, "biases") };
    if (limit(line, "max_tokens"))
        own.max_tokens = limit(line, "max_tokens");
    if (limit(line, "n_ctx"))
        own.n_ctx = limit(line, "n_ctx");
    conversation c = { .pieces = json_array() };
    qn_refusal refusal;
    int status = -400;
    if (!protocol)
        exit(2);
    c.exchange =
        qn_exchange_parse(protocol, json_string_value(body), json_string_length(body), &limits, &origin, &refusal);
    if (c.exchange && qn_exchange_bind(c.exchange, served, &refusal))
        status = run(&c, served, json_is_true(json_object_get(line, "is_kept")) ? kept : NULL, &refusal);
    else
        status = -refusal.status;
    if (status < 0) {
        protocol->refuse(&refusal, &c.out);
        take_piece(&c);
    }
    if (c.out.has_failed)
        exit(2);
    qn_exchange_free(c.exchange);
    qn_bytes_free(&c.out);
    return json_pack("{s:i, s:o}", "status", abs(status), "pieces", c.pieces);
}

static char *read_template(const char *path)
{
    static char text[1 << 20];
    FILE *file = fopen(path, "rb");
    if (!file)
        exit(2);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

int main(int argc, char **argv)
{
    char *text = NULL;
    size_t capacity = 0;
    qn_model *model;
    qn_scheduler *kept = NULL;
    const qn_model_params params = { .size = sizeof(qn_model_params),
                                     .device = "cpu",
                                     .n_threads = 1,
                                     .skip_weight_scan = true,
                                     .chat_template = argc > 2 ? read_template(argv[2]) : NULL };
    if (argc < 2 || qn_model_load(argv[1], &params, &model)) {
        fprintf(stderr, "protocol_lines: %s\n", argc < 2 ? "expected MODEL" : qn_error_text());
        return 2;
    }
    qn_served served = { .model = model,
                         .name = "quern-test",
                         .fingerprint = "b1",
                         .n_ctx = CONTEXT,
                         .max_tokens = 64,
                         .reasoning_budget = -1,
                         .sampling = (qn_sampling)QN_SAMPLING_INIT };
    served.sampling.temperature = 1;
    served.sampling.top_k = 0;
    served.sampling.top_p = 1;
    served.sampling.min_p = 0;
    while (getline(&text, &capacity, stdin) > 0) {
        json_t *line = json_loads(text, JSON_ALLOW_NUL, NULL), *result = line ? answer(line, &served, &kept) : NULL;
        char *printed = result ? json_dumps(result, JSON_COMPACT) : NULL;
        if (!printed)
            return 2;
        puts(printed);
        fflush(stdout);
        free(printed);
        json_decref(result);
        json_decref(line);
    }
    free(text);
    qn_scheduler_free(kept);
    qn_model_free(model);
    return 0;
}
