/* Compiles and renders templates: memory, names, variables and the spans of the output. */
#include "jinja/jinja.h"

#include "base/memory.h"
#include "base/status.h"
#include "jinja/parser.h"
#include "jinja/render.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_SOURCE = 1 << 20, MAX_TREE = 256 << 20, MAX_NAMES = 1000, MAX_NAME_LENGTH = 1000 };

static const qn_jinja_limits standard = { .steps = 20000000, .memory = 512u << 20, .output = 64 << 20 };

/* ---- Names ---- */

qn_status qn_intern(struct qn_jinja *jinja, const char *name, size_t length, const char **out)
{
    qn_names *names = &jinja->names;
    for (uint32_t i = 0; i < names->n; i++)
        if (!strncmp(names->names[i], name, length) && !names->names[i][length]) {
            *out = names->names[i];
            return QN_OK;
        }
    if (names->n == MAX_NAMES || length > MAX_NAME_LENGTH)
        return qn_fail(QN_ERR_INVALID, "chat template: more than %d names, or one that is longer than %d bytes",
                       (int)MAX_NAMES, (int)MAX_NAME_LENGTH);
    if (names->n == names->capacity) {
        const uint32_t capacity = names->capacity ? 2 * names->capacity : 64;
        const char **grown;
        QN_TRY(qn_arena_alloc(&jinja->arena, &grown, capacity, sizeof *grown));
        if (names->n)
            memcpy(grown, names->names, names->n * sizeof *grown);
        names->names = grown;
        names->capacity = capacity;
    }
    char *copy;
    QN_TRY(qn_arena_alloc(&jinja->arena, &copy, length + 1, 1));
    memcpy(copy, name, length);
    names->names[names->n++] = copy;
    *out = copy;
    return QN_OK;
}

const char *qn_interned(const struct qn_jinja *jinja, const char *name)
{
    for (uint32_t i = 0; i < jinja->names.n; i++)
        if (!strcmp(jinja->names.names[i], name))
            return jinja->names.names[i];
    return NULL;
}

/* ---- Compiling ---- */

int qn_shown_bytes(const char *text, size_t length, size_t most)
{
    size_t n = length < most ? length : most;
    while (n < length && n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80)
        n--;
    return (int)n;
}

/* Replaces \r\n and \r by \n, and drops one newline at the end. */
static size_t normalise_newlines(char *text, size_t length)
{
    size_t n = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '\r' && i + 1 < length && text[i + 1] == '\n')
            continue;
        text[n++] = text[i] == '\r' ? '\n' : text[i];
    }
    return n && text[n - 1] == '\n' ? n - 1 : n;
}

static qn_status check_utf8(const char *text, size_t length)
{
    unsigned line = 1;
    for (size_t at = 0, n; at < length; at += n) {
        uint32_t code;
        if (qn_utf8_next(text + at, length - at, &n, &code) != QN_UTF8_COMPLETE)
            return qn_fail(QN_ERR_INVALID, "chat template, line %u: not valid UTF-8", line);
        line += code == '\n';
    }
    return QN_OK;
}

static qn_status compile(struct qn_jinja *jinja, const char *source, size_t length)
{
    if (length > MAX_SOURCE)
        return qn_fail(QN_ERR_INVALID, "chat template: %zu bytes, at most %d are allowed", length, (int)MAX_SOURCE);
    QN_TRY(check_utf8(source, length));
    QN_TRY(qn_arena_alloc(&jinja->arena, &jinja->source, length + 1, 1));
    if (length)
        memcpy(jinja->source, source, length);
    jinja->length = normalise_newlines(jinja->source, length);
    return qn_template_parse(jinja);
}

qn_status qn_jinja_compile(const char *source, size_t length, qn_jinja **out)
{
    struct qn_jinja *jinja;
    *out = NULL;
    QN_TRY(qn_alloc(&jinja, 1, sizeof *jinja, "chat template"));
    jinja->arena.limit = MAX_TREE;
    const qn_status status = compile(jinja, source, length);
    if (status) {
        qn_jinja_free(jinja);
        return status;
    }
    *out = jinja;
    return QN_OK;
}

void qn_jinja_free(qn_jinja *jinja)
{
    if (!jinja)
        return;
    qn_arena_free(&jinja->arena);
    qn_free(jinja);
}

bool qn_jinja_uses(const qn_jinja *jinja, const char *name)
{
    if (qn_interned(jinja, name))
        return true;
    for (size_t i = 0; i < jinja->n_texts; i++) {
        const qn_value *v = &jinja->texts[i]->value;
        if (jinja->texts[i]->kind == QN_NODE_CONST && v->u.string->length == strlen(name) &&
            !memcmp(v->u.string->data, name, strlen(name)))
            return true;
    }
    return false;
}

void qn_jinja_spells(const qn_jinja *jinja, bool (*visit)(const char *text, size_t length, void *user), void *user)
{
    for (size_t i = 0; i < jinja->n_texts; i++) {
        const qn_jinja_string *s = jinja->texts[i]->value.u.string;
        if (!visit(s->data, s->length, user))
            return;
    }
}

/* ---- Rendering ---- */

/* Sets the variables, whose values count towards the memory limit, and lowers the limit to MEMORY, plus FACTOR bytes
 * for each byte of their texts. */
static qn_status set_variables(qn_run *r, const qn_jinja_variable *variables, size_t n)
{
    enum { MEMORY = 32 << 20, FACTOR = 3 };
    size_t n_bytes = 0, most;
    for (size_t i = 0; i < n; i++) {
        const char *name = qn_interned(r->jinja, variables[i].name);
        qn_value value;
        if (!name || !variables[i].value)
            continue;
        size_t n_texts;
        QN_TRY(qn_value_of_json(&r->arena, variables[i].value, variables[i].from_template, &n_texts, &value));
        n_bytes += n_texts;
        QN_TRY(qn_scope_set(r, r->globals, name, value));
    }
    if (!qn_mul_size(n_bytes, FACTOR, &most) || !qn_add_size(most, MEMORY, &most))
        most = SIZE_MAX;
    r->arena.limit = most < r->arena.limit ? most : r->arena.limit;
    return r->arena.bytes <= r->arena.limit
               ? QN_OK
               : qn_fail(QN_ERR_INVALID, "chat template: the conversation has too many values");
}

static qn_status add_span(qn_jinja_output *output, size_t *capacity, size_t end, bool from_template)
{
    const size_t begin = output->n_spans ? output->spans[output->n_spans - 1].end : 0;
    QN_TRY(qn_realloc_array(&output->spans, capacity, output->n_spans + 1, sizeof *output->spans, "spans of text"));
    output->spans[output->n_spans++] = (qn_jinja_span){ begin, end, from_template };
    return QN_OK;
}

static qn_status write_output(const qn_value *text, qn_jinja_output *output)
{
    const qn_jinja_string *s = text->u.string;
    size_t capacity = 0;
    output->text = malloc(s->length + 1);
    if (!output->text)
        return qn_fail(QN_ERR_MEMORY, "chat template: no memory for %zu bytes", s->length);
    memcpy(output->text, s->data, s->length);
    output->text[s->length] = 0;
    output->length = s->length;
    if (!s->marks)
        return s->length ? add_span(output, &capacity, s->length, text->origin == QN_FROM_TEMPLATE) : QN_OK;
    for (size_t at = 1; at <= s->length; at++)
        if (at == s->length || s->marks[at] != s->marks[at - 1])
            QN_TRY(add_span(output, &capacity, at, s->marks[at - 1] == QN_FROM_TEMPLATE));
    return QN_OK;
}

static qn_status render(qn_run *r, const qn_jinja_variable *variables, size_t n, qn_jinja_output *output)
{
    qn_value text;
    QN_TRY(qn_scope_push(r, NULL, &r->globals));
    QN_TRY(set_variables(r, variables, n));
    QN_TRY(qn_render_template(r, &text));
    return write_output(&text, output);
}

qn_status qn_jinja_render(const qn_jinja *jinja, const qn_jinja_variable *variables, size_t n, int64_t now,
                          const qn_jinja_limits *limits, qn_jinja_output *output)
{
    const qn_jinja_limits given = limits ? *limits : standard;
    qn_run r = { .jinja = jinja,
                 .arena = { .limit = given.memory ? given.memory : standard.memory },
                 .steps = given.steps ? given.steps : standard.steps,
                 .output = given.output ? given.output : standard.output,
                 .now = now };
    *output = (qn_jinja_output){ 0 };
    const qn_status status = render(&r, variables, n, output);
    qn_arena_free(&r.arena);
    if (status)
        qn_jinja_output_free(output);
    return status;
}

void qn_jinja_output_free(qn_jinja_output *output)
{
    free(output->text);
    free(output->spans);
    *output = (qn_jinja_output){ 0 };
}
