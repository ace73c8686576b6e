/* Ollama's /api/show, which describes a model, and /api/embed and /api/embeddings. */
#include "protocol/embeddings.h"
#include "protocol/ollama.h"

#include "base/memory.h"

#include <stdio.h>
#include <string.h>

/* ---- /api/show ---- */

typedef struct show_exchange {
    qn_exchange base;
    json_t *model; /* a reference to the string that base.model points into */
    qn_bytes answer;
} show_exchange;

static void free_show(qn_exchange *exchange)
{
    show_exchange *x = (show_exchange *)exchange;
    qn_bytes_free(&x->answer);
    json_decref(x->model);
    qn_free(x);
}

static qn_exchange *parse_show(json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    show_exchange *x;
    if (qn_alloc(&x, 1, sizeof *x, "a request")) {
        qn_refuse_memory(refusal);
        return NULL;
    }
    x->base.account = x->answer.account = reading->account;
    x->base.is_read = true;
    if (qn_ollama_take_model(body, &x->model, refusal)) {
        x->base.model = json_string_value(x->model);
        return &x->base;
    }
    free_show(&x->base);
    return NULL;
}

static void write_capabilities(const qn_model *model, qn_bytes *out)
{
    const qn_chat_format *chat = qn_model_get_chat_format(model);
    qn_json_key(out, "capabilities");
    qn_json_open(out, '[');
    qn_json_string(out, "completion");
    if (*chat->tool_calls && strcmp(chat->tool_calls, "unknown") != 0)
        qn_json_string(out, "tools");
    if (*chat->think_open)
        qn_json_string(out, "thinking");
    if (qn_model_get_infill(model))
        qn_json_string(out, "insert");
    if (qn_model_get_pooling(model))
        qn_json_string(out, "embedding");
    qn_json_close(out, ']');
}

static void write_count(const char *architecture, const char *key, uint64_t value, qn_bytes *out)
{
    char name[128];
    snprintf(name, sizeof name, "%s.%s", architecture, key);
    qn_json_member_integer(out, name, (int64_t)value);
}

/* The keys of the file that clients read. */
static void write_info(const qn_model_info *info, qn_bytes *out)
{
    qn_json_key(out, "model_info");
    qn_json_open(out, '{');
    qn_json_member_string(out, "general.architecture", info->architecture);
    qn_json_member_string(out, "general.basename", info->name);
    qn_json_member_integer(out, "general.parameter_count", (int64_t)info->n_params);
    write_count(info->architecture, "context_length", info->n_ctx_train, out);
    write_count(info->architecture, "embedding_length", info->n_embd, out);
    write_count(info->architecture, "block_count", info->n_layers, out);
    write_count(info->architecture, "vocab_size", info->n_vocab, out);
    qn_json_member_string(out, "tokenizer.ggml.model", info->tokeniser);
    qn_json_close(out, '}');
}

static void write_parameters(const qn_served *served, qn_bytes *out)
{
    char text[256];
    const qn_sampling *s = &served->sampling;
    snprintf(text, sizeof text, "num_ctx %u\ntemperature %g\ntop_k %d\ntop_p %g\nmin_p %g\nrepeat_penalty %g",
             (unsigned)served->n_ctx, (double)s->temperature, s->top_k, (double)s->top_p, (double)s->min_p,
             (double)s->repeat_penalty);
    qn_json_member_string(out, "parameters", text);
}

static bool bind_show(qn_exchange *exchange, const qn_served *served, qn_refusal *refusal)
{
    show_exchange *x = (show_exchange *)exchange;
    const qn_model_info *info = qn_model_get_info(served->model);
    qn_bytes *out = &x->answer;
    qn_json_open(out, '{');
    qn_json_member_string(out, "license", "");
    qn_json_member_string(out, "modelfile", "");
    write_parameters(served, out);
    qn_json_member_string(out, "template", qn_model_get_chat_format(served->model)->text);
    qn_ollama_details(info->architecture, info->quantisation, info->n_params, out);
    write_info(info, out);
    write_capabilities(served->model, out);
    qn_json_close(out, '}');
    return !out->has_failed || qn_refuse_over(exchange->account, refusal);
}

static int end_show(qn_exchange *exchange, qn_bytes *out)
{
    show_exchange *x = (show_exchange *)exchange;
    qn_bytes_free(out);
    *out = x->answer;
    x->answer = (qn_bytes){ 0 };
    return 200;
}

static void fail_show(qn_exchange *exchange, const qn_refusal *refusal, qn_bytes *out)
{
    (void)refusal;
    (void)out;
    exchange->has_failed = true;
}

static const char *const show_paths[] = { "/api/show", NULL };

const qn_protocol qn_ollama_show = { .paths = show_paths,
                                     .keep_alive = " ",
                                     .is_direct = true,
                                     .parse = parse_show,
                                     .bind = bind_show,
                                     .begin = qn_llama_begin,
                                     .event = qn_text_exchange_no_event,
                                     .end = end_show,
                                     .fail = fail_show,
                                     .refuse = qn_ollama_refuse,
                                     .free = free_show };

/* ---- Embeddings ---- */

/* Sets the model's name, as other bodies of this API have it. Takes over x, which may be NULL; NULL: refused. */
static qn_exchange *take_name(qn_embeddings_exchange *x, const json_t *body, qn_refusal *refusal)
{
    json_t *model = NULL;
    if (!x)
        return NULL;
    if (qn_ollama_take_model(body, &model, refusal)) {
        json_decref(x->model);
        x->model = model;
        x->base.model = json_string_value(model);
        return &x->base;
    }
    qn_embeddings_free(&x->base);
    return NULL;
}

static qn_exchange *parse_embed(json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    static const char *const fields[] = { "input", NULL };
    qn_embeddings_exchange *x = qn_embeddings_parse(body, fields, reading, refusal);
    if (x) {
        x->cuts = true;
        if (!qn_field_bool(body, "truncate", &x->cuts, refusal) || !qn_embeddings_dimensions(x, body, refusal)) {
            qn_embeddings_free(&x->base);
            return NULL;
        }
    }
    return take_name(x, body, refusal);
}

/* Member `parse` of the older form: one text, whose vector is not normalised. */
static qn_exchange *parse_embeddings(json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    static const char *const fields[] = { "prompt", NULL };
    if (!json_is_string(qn_field(body, "prompt"))) {
        qn_refuse_type(refusal, "prompt", qn_field(body, "prompt"), "a string");
        return NULL;
    }
    qn_embeddings_exchange *x = qn_embeddings_parse(body, fields, reading, refusal);
    if (x) {
        x->norm = -1;
        x->cuts = true;
    }
    return take_name(x, body, refusal);
}

static int end_embed(qn_exchange *exchange, qn_bytes *out)
{
    qn_embeddings_exchange *x = (qn_embeddings_exchange *)exchange;
    double seconds = 0;
    if (!qn_embeddings_check_end(x, out))
        return x->refusal.status;
    for (size_t i = 0; i < x->n_prompts; i++) { /* they are evaluated together */
        const double last = x->embedded[i].result.queued_seconds + x->embedded[i].result.prompt_seconds;
        seconds = last > seconds ? last : seconds;
    }
    qn_ollama_open(qn_embeddings_model(x), exchange->created, out);
    qn_json_key(out, "embeddings");
    qn_json_open(out, '[');
    for (size_t i = 0; i < x->n_prompts; i++)
        qn_embeddings_write(x, i, out);
    qn_json_close(out, ']');
    qn_ollama_seconds("total_duration", seconds, out);
    qn_json_member_integer(out, "load_duration", 0);
    qn_json_member_integer(out, "prompt_eval_count", (int64_t)qn_embeddings_tokens(x));
    qn_json_close(out, '}');
    return 200;
}

static int end_embeddings(qn_exchange *exchange, qn_bytes *out)
{
    qn_embeddings_exchange *x = (qn_embeddings_exchange *)exchange;
    if (!qn_embeddings_check_end(x, out))
        return x->refusal.status;
    qn_json_open(out, '{');
    qn_json_key(out, "embedding");
    qn_embeddings_write(x, 0, out);
    qn_json_close(out, '}');
    return 200;
}

#define OLLAMA_EMBEDDINGS(paths_, parse_, end_)                                                                        \
    {                                                                                                                  \
        .paths = paths_, .keep_alive = " ", .parse = parse_, .bind = qn_embeddings_bind, .begin = qn_llama_begin,      \
        .event = qn_embeddings_event, .end = end_, .fail = qn_embeddings_fail, .refuse = qn_ollama_refuse,             \
        .free = qn_embeddings_free                                                                                     \
    }

static const char *const embed_paths[] = { "/api/embed", NULL }, *const embeddings_paths[] = { "/api/embeddings",
                                                                                               NULL };

const qn_protocol qn_ollama_embed = OLLAMA_EMBEDDINGS(embed_paths, parse_embed, end_embed);
const qn_protocol qn_ollama_embeddings = OLLAMA_EMBEDDINGS(embeddings_paths, parse_embeddings, end_embeddings);
