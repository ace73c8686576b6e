/* The cache of compiled grammars. Its key is scope, kind and text: a grammar compiled in one scope is compiled again in
 * another, so that compilation time reveals nothing about other scopes. The least recently used grammars of the scope
 * with the most are dropped; grammars in use survive by the references of their users. If two threads compile the same
 * text at the same time, both compile it and share one result. */
#include "engine/grammars.h"

#include "base/keyed_hash.h"
#include "base/memory.h"
#include "base/params.h"
#include "engine/calls.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Kinds in addition to those of qn_grammar_kind. */
enum { CHOICES = QN_GRAMMAR_GBNF + 1, CALLS };

/* Number of masks cached with the vocabulary. */
enum { KEPT_MASKS = 1024 };

/* The source of a grammar. */
typedef struct source {
    const char *scope;
    int kind;
    qn_json_style style;
    const char *text; /* of choices: all, with their terminators; of calls: flags, the name, the format and the tools */
    size_t length;
    const char *const *choices;
    size_t n_choices;
    const qn_grammar_calls *calls;
} source;

/* A cached grammar, with a reference to it. */
typedef struct kept_grammar {
    int kind;
    qn_json_style style;
    char *text, *scope;   /* one allocation: the scope follows the text */
    size_t length, bytes; /* bytes: with the grammar */
    uint64_t hash, used;
    qn_grammar *grammar;
} kept_grammar;

/* `lock` protects kept, n_uses and counts, and is not held while a grammar is compiled. vocab_lock protects `vocab`,
 * and is held while it is built; once it is set it does not change. */
struct qn_grammars {
    pthread_mutex_t lock, vocab_lock;
    bool has_lock, has_vocab_lock;
    qn_grammar_vocab *vocab;
    kept_grammar kept[QN_KEPT_GRAMMARS];
    uint64_t n_uses;
    qn_grammar_counts counts;
};

qn_status qn_grammars_create(qn_grammars **out)
{
    qn_grammars *g;
    *out = NULL;
    QN_TRY(qn_alloc(&g, 1, sizeof *g, "grammars"));
    g->has_lock = pthread_mutex_init(&g->lock, NULL) == 0;
    g->has_vocab_lock = pthread_mutex_init(&g->vocab_lock, NULL) == 0;
    *out = g;
    if (g->has_lock && g->has_vocab_lock)
        return QN_OK;
    qn_grammars_free(g);
    *out = NULL;
    return qn_fail(QN_ERR_MEMORY, "grammars: no memory for a lock");
}

static void drop(qn_grammars *g, size_t i)
{
    g->counts.bytes -= g->kept[i].bytes;
    qn_grammar_free(g->kept[i].grammar);
    qn_free(g->kept[i].text);
    g->kept[i] = g->kept[--g->counts.n];
}

void qn_grammars_free(qn_grammars *g)
{
    if (!g)
        return;
    while (g->counts.n)
        drop(g, g->counts.n - 1);
    qn_grammar_vocab_free(g->vocab);
    if (g->has_lock)
        pthread_mutex_destroy(&g->lock);
    if (g->has_vocab_lock)
        pthread_mutex_destroy(&g->vocab_lock);
    qn_free(g);
}

qn_status qn_grammars_vocab(qn_grammars *g, const qn_tokenizer *tokenizer, const qn_output_params *output,
                            qn_grammar_vocab **out)
{
    pthread_mutex_lock(&g->vocab_lock);
    const qn_status status = g->vocab ? QN_OK : qn_grammar_vocab_create(tokenizer, output, KEPT_MASKS, &g->vocab);
    *out = g->vocab;
    pthread_mutex_unlock(&g->vocab_lock);
    return status;
}

qn_grammar_counts qn_grammars_count(qn_grammars *g)
{
    pthread_mutex_lock(&g->lock);
    const qn_grammar_counts counts = g->counts;
    pthread_mutex_unlock(&g->lock);
    return counts;
}

/* ---- Keeping ---- */

/* Finds a cached grammar; NULL if it is not cached. The caller holds the lock. */
static qn_grammar *find(qn_grammars *g, const source *s, uint64_t hash)
{
    for (size_t i = 0; i < g->counts.n; i++) {
        kept_grammar *k = &g->kept[i];
        if (k->hash != hash || k->kind != s->kind || k->style.space != s->style.space ||
            k->style.order != s->style.order || k->style.closed != s->style.closed || k->length != s->length ||
            memcmp(k->text, s->text, s->length) || strcmp(k->scope, s->scope) != 0)
            continue;
        k->used = ++g->n_uses;
        return qn_grammar_share(k->grammar);
    }
    return NULL;
}

/* The total of a scope's cached grammars, in bytes or in number. The caller holds the lock. */
static size_t weigh(const qn_grammars *g, const char *scope, bool by_bytes)
{
    size_t weight = 0;
    for (size_t i = 0; i < g->counts.n; i++)
        if (!strcmp(g->kept[i].scope, scope))
            weight += by_bytes ? g->kept[i].bytes : 1;
    return weight;
}

/* Drops one grammar to make room for a new grammar of `bytes`, which counts towards `scope`. So a scope never makes
 * others drop below an equal share. The caller holds the lock. */
static void drop_one(qn_grammars *g, const char *scope, size_t bytes)
{
    const bool by_bytes = g->counts.n < QN_KEPT_GRAMMARS;
    size_t most = 0, found = 0;
    for (size_t i = 0; i < g->counts.n; i++) {
        const kept_grammar *k = &g->kept[i];
        const size_t own = strcmp(k->scope, scope) != 0 ? 0
                           : by_bytes                   ? bytes
                                                        : 1,
                     weight = weigh(g, k->scope, by_bytes) + own;
        if (weight > most || (weight == most && k->used < g->kept[found].used)) {
            most = weight;
            found = i;
        }
    }
    drop(g, found);
}

/* Adds a grammar to the cache, which takes ownership of `text`. The caller holds the lock. */
static void add(qn_grammars *g, const source *s, uint64_t hash, char *text, qn_grammar *grammar)
{
    const size_t bytes = sizeof(kept_grammar) + s->length + strlen(s->scope) + qn_grammar_bytes(grammar);
    while (g->counts.n == QN_KEPT_GRAMMARS || g->counts.bytes + bytes > QN_KEPT_GRAMMAR_BYTES)
        drop_one(g, s->scope, bytes);
    g->kept[g->counts.n++] = (kept_grammar){ s->kind, s->style, text,        text + s->length + 1,     s->length,
                                             bytes,   hash,     ++g->n_uses, qn_grammar_share(grammar) };
    g->counts.bytes += bytes;
}

/* ---- Compiling ---- */

static qn_status compile_schema(const source *s, qn_grammar **out)
{
    json_t *schema;
    const qn_grammar_options options = { .strict = s->kind == QN_GRAMMAR_SCHEMA_STRICT, .style = s->style };
    QN_TRY(qn_load_json("schema", s->text, s->length, JSON_DECODE_ANY, &schema));
    const qn_status status = qn_grammar_from_schema(schema, &options, out);
    json_decref(schema);
    return status;
}

static qn_status compile(const source *s, qn_grammar **out)
{
    switch (s->kind) {
    case QN_GRAMMAR_SCHEMA:
    case QN_GRAMMAR_SCHEMA_STRICT: return compile_schema(s, out);
    case QN_GRAMMAR_JSON: return qn_grammar_from_json(true, s->style, out);
    case QN_GRAMMAR_REGEX: return qn_grammar_from_regex(s->text, s->length, out);
    case QN_GRAMMAR_GBNF: return qn_grammar_from_gbnf(s->text, s->length, out);
    case CALLS: return qn_grammar_from_calls(s->calls, out);
    case CHOICES: return qn_grammar_from_choices(s->choices, s->n_choices, out);
    }
    return qn_fail(QN_ERR_INVALID, "grammar: kind %d, expected 0 to %d", s->kind, QN_GRAMMAR_GBNF);
}

static qn_status get(qn_grammars *g, const source *s, qn_grammar **out)
{
    const size_t n_scope = strlen(s->scope) + 1;
    const uint64_t hash = qn_keyed_hash_with(s->text, s->length, qn_keyed_hash(s->scope, n_scope));
    char *text = NULL;
    pthread_mutex_lock(&g->lock);
    *out = find(g, s, hash);
    g->counts.found += *out != NULL;
    pthread_mutex_unlock(&g->lock);
    if (*out)
        return QN_OK;
    qn_grammar *compiled;
    QN_TRY(compile(s, &compiled));
    const bool keeps = s->length + qn_grammar_bytes(compiled) <= QN_KEPT_GRAMMAR_BYTES / 8;
    const qn_status status = keeps ? qn_alloc(&text, s->length + 1 + n_scope, 1, "grammar") : QN_OK;
    if (status != QN_OK) {
        qn_grammar_free(compiled);
        return status;
    }
    pthread_mutex_lock(&g->lock);
    g->counts.compiled++;
    qn_grammar *other = find(g, s, hash);
    if (!other && keeps) {
        memcpy(text, s->text, s->length);
        memcpy(text + s->length + 1, s->scope, n_scope);
        add(g, s, hash, text, compiled);
        text = NULL;
    }
    pthread_mutex_unlock(&g->lock);
    qn_free(text);
    if (other)
        qn_grammar_free(compiled);
    *out = other ? other : compiled;
    return QN_OK;
}

/* Reads a caller's style; NULL: the defaults. */
static qn_status read_style(const qn_json_style *given, qn_json_style *style)
{
    if (given)
        QN_TRY(QN_PARAMS_READ(qn_json_style, given, style));
    if ((unsigned)style->space > QN_JSON_SPACE_ANY)
        return qn_fail(QN_ERR_INVALID, "grammar: white space %d, expected 0 to %d", (int)style->space,
                       QN_JSON_SPACE_ANY);
    if ((unsigned)style->order > QN_JSON_ORDER_ANY)
        return qn_fail(QN_ERR_INVALID, "grammar: order %d, expected 0 to %d", (int)style->order, QN_JSON_ORDER_ANY);
    return QN_OK;
}

qn_status qn_grammar_create_in(qn_model *model, const char *scope, const qn_json_style *style, qn_grammar_kind kind,
                               const char *text, size_t length, qn_grammar **out)
{
    const bool has_text = kind != QN_GRAMMAR_JSON && length;
    *out = NULL;
    QN_TRY(qn_model_check_process(model, __func__));
    if ((int)kind < 0 || kind > QN_GRAMMAR_GBNF)
        return qn_fail(QN_ERR_INVALID, "grammar: kind %d, expected 0 to %d", (int)kind, QN_GRAMMAR_GBNF);
    qn_json_style own = QN_JSON_STYLE_INIT;
    QN_TRY(read_style(style, &own));
    const source s = { .scope = scope ? scope : "",
                       .kind = (int)kind,
                       .style = own,
                       .text = has_text ? text : "",
                       .length = has_text ? length : 0 };
    return get(model->grammars, &s, out);
}

qn_status qn_grammar_create(qn_model *model, qn_grammar_kind kind, const char *text, size_t length, qn_grammar **out)
{
    return qn_grammar_create_in(model, NULL, NULL, kind, text, length, out);
}

qn_status qn_grammar_create_choices(qn_model *model, const char *const *choices, size_t n_choices, qn_grammar **out)
{
    return qn_grammar_create_choices_in(model, NULL, choices, n_choices, out);
}

qn_status qn_grammar_create_choices_in(qn_model *model, const char *scope, const char *const *choices, size_t n_choices,
                                       qn_grammar **out)
{
    size_t length = 0, capacity = 0;
    char *text = NULL;
    *out = NULL;
    QN_TRY(qn_model_check_process(model, __func__));
    for (size_t i = 0; i < n_choices; i++) {
        const size_t n = strlen(choices[i]) + 1;
        const qn_status status = qn_realloc_array(&text, &capacity, length + n, 1, "choices");
        if (status != QN_OK) {
            free(text);
            return status;
        }
        memcpy(text + length, choices[i], n);
        length += n;
    }
    const qn_status status = get(model->grammars,
                                 &(source){ .scope = scope ? scope : "",
                                            .kind = CHOICES,
                                            .text = text ? text : "",
                                            .length = length,
                                            .choices = choices,
                                            .n_choices = n_choices },
                                 out);
    free(text);
    return status;
}

/* Writes the key of a grammar of calls. Only its last part may contain a zero byte. */
static qn_status describe_calls(const qn_call_params *params, char **text, size_t *length)
{
    const unsigned flags = params->is_required + 2u * params->is_single + 4u * (params->name != NULL) +
                           8u * (params->format != NULL) + 16u * params->is_format_strict;
    const size_t n_name = params->name ? strlen(params->name) : 0,
                 n_format = params->format ? params->format_length : 0;
    QN_TRY(qn_alloc(text, 1 + n_name + 1 + n_format + 1 + params->length, 1, "tools"));
    char *to = *text;
    *to++ = (char)('0' + flags);
    memcpy(to, params->name ? params->name : "", n_name);
    to += n_name + 1;
    memcpy(to, params->format ? params->format : "", n_format);
    to += n_format + 1;
    memcpy(to, params->tools, params->length);
    *length = (size_t)(to - *text) + params->length;
    return QN_OK;
}

qn_status qn_grammar_create_calls(qn_model *model, const qn_call_params *given, qn_grammar **out)
{
    qn_call_params own = QN_CALL_PARAMS_INIT, *const params = &own;
    qn_json_style style = QN_JSON_STYLE_INIT;
    qn_output_params output;
    json_t *tools, *format = NULL;
    size_t length;
    char *text = NULL;
    *out = NULL;
    QN_TRY(qn_model_check_process(model, __func__));
    QN_TRY(QN_PARAMS_READ(qn_call_params, given, &own));
    if (params->format && params->is_required)
        return qn_fail(QN_ERR_INVALID, "tools: calls are required, and a format is given for other answers");
    QN_TRY(read_style(params->style, &style));
    QN_TRY(qn_model_calls(model, &output));
    QN_TRY(qn_load_json("tools", params->tools, params->length, JSON_DECODE_ANY, &tools));
    qn_status status = json_is_array(tools) ? QN_OK : qn_fail(QN_ERR_INVALID, "tools: they are not an array");
    if (status == QN_OK && params->format)
        status = qn_load_json("format", params->format, params->format_length, JSON_DECODE_ANY, &format);
    const qn_grammar_calls calls = { .output = &output,
                                     .tools = tools,
                                     .name = params->name,
                                     .is_lazy = !params->is_required && !format,
                                     .is_single = params->is_single,
                                     .format = format,
                                     .is_format_strict = params->is_format_strict,
                                     .style = style };
    if (status == QN_OK)
        status = describe_calls(params, &text, &length);
    if (status == QN_OK)
        status = get(model->grammars,
                     &(source){ .scope = params->scope ? params->scope : "",
                                .kind = CALLS,
                                .style = style,
                                .text = text,
                                .length = length,
                                .calls = &calls },
                     out);
    qn_free(text);
    json_decref(tools);
    json_decref(format);
    return status;
}

qn_status qn_grammar_prepare(qn_model *model)
{
    const qn_tokenizer *tokenizer;
    qn_output_params output;
    qn_grammar_vocab *vocab;
    QN_TRY(qn_model_check_process(model, __func__));
    QN_TRY(qn_model_tokenizer(model, &tokenizer));
    qn_model_output(model, &output);
    return qn_grammars_vocab(model->grammars, tokenizer, &output, &vocab);
}
