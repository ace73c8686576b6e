/* json.dumps and json.loads. */
#include "base/status.h"
#include "jinja/run.h"
#include "base/utf8.h"
#include "gguf/json_decode.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct writer {
    qn_run *r;
    qn_builder b;
    const qn_json_style *style;
    qn_value indent; /* the text of one level, or none */
    unsigned level;
} writer;

static qn_status put(writer *w, const char *text, size_t n)
{
    return qn_builder_bytes(&w->b, text, n, QN_FROM_DATA);
}

static qn_status put_escape(writer *w, uint32_t code)
{
    static const char letters[] = "\"\\\b\f\n\r\t", escapes[] = "\"\\bfnrt";
    const char *letter = code && code < 0x80 ? strchr(letters, (int)code) : NULL;
    char text[16];
    if (letter)
        snprintf(text, sizeof text, "\\%c", escapes[letter - letters]);
    else if (code < 0x10000)
        snprintf(text, sizeof text, "\\u%04x", code);
    else
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD800 + ((code - 0x10000) >> 10),
                 0xDC00 + ((code - 0x10000) & 0x3FF));
    return put(w, text, strlen(text));
}

static qn_status put_string(writer *w, const qn_jinja_string *s)
{
    QN_TRY(qn_run_work(w->r, s->length / QN_READ_PER_STEP));
    QN_TRY(put(w, "\"", 1));
    size_t begin = 0, n;
    for (size_t at = 0; at < s->length; at += n) {
        uint32_t code = (unsigned char)s->data[at];
        n = 1;
        if (code >= 0x80 && w->style->ascii &&
            qn_utf8_next(s->data + at, s->length - at, &n, &code) != QN_UTF8_COMPLETE)
            code = 0xFFFD;
        if (code != '"' && code != '\\' && code >= 0x20 && (code < 0x7F || !w->style->ascii))
            continue;
        QN_TRY(qn_run_work(w->r, 1));
        QN_TRY(put(w, s->data + begin, at - begin));
        QN_TRY(put_escape(w, code));
        begin = at + n;
    }
    QN_TRY(put(w, s->data + begin, s->length - begin));
    return put(w, "\"", 1);
}

static qn_status put_number(writer *w, const qn_value *v)
{
    char text[QN_FLOAT_TEXT];
    QN_TRY(qn_run_work(w->r, v->type == QN_VALUE_FLOAT ? QN_FLOAT_STEPS : 0));
    if (v->type == QN_VALUE_NONE)
        return put(w, "null", 4);
    if (v->type == QN_VALUE_BOOL)
        return v->u.boolean ? put(w, "true", 4) : put(w, "false", 5);
    if (v->type == QN_VALUE_INT)
        snprintf(text, sizeof text, "%" PRId64, v->u.integer);
    else if (isnan(v->u.real))
        snprintf(text, sizeof text, "NaN");
    else if (isinf(v->u.real))
        snprintf(text, sizeof text, "%sInfinity", v->u.real < 0 ? "-" : "");
    else
        qn_float_text(v->u.real, text);
    return put(w, text, strlen(text));
}

static qn_status put_line(writer *w)
{
    if (w->indent.type == QN_VALUE_NONE)
        return QN_OK;
    enum { INDENTS_PER_STEP = 8 };
    QN_TRY(qn_run_work(w->r, w->level * (1 + qn_value_weight(&w->indent)) / INDENTS_PER_STEP));
    QN_TRY(put(w, "\n", 1));
    for (unsigned i = 0; i < w->level; i++)
        QN_TRY(put(w, w->indent.u.string->data, w->indent.u.string->length));
    return QN_OK;
}

static qn_status put_separator(writer *w, const char *text, size_t n)
{
    QN_TRY(qn_run_work(w->r, n / QN_COPIED_PER_STEP));
    return put(w, text, n);
}

static qn_status put_value(writer *w, const qn_value *v);

static qn_status put_list(writer *w, const qn_list *list)
{
    QN_TRY(put(w, "[", 1));
    w->level++;
    for (size_t i = 0; i < list->n; i++) {
        if (i)
            QN_TRY(put_separator(w, w->style->item_separator, w->style->n_item_separator));
        QN_TRY(put_line(w));
        QN_TRY(put_value(w, &list->items[i]));
    }
    w->level--;
    if (list->n)
        QN_TRY(put_line(w));
    return put(w, "]", 1);
}

/* Writes a key. Keys that are not strings are printed in quotes. */
static qn_status put_key(writer *w, const qn_value *key)
{
    if (qn_is_string(key))
        return put_string(w, key->u.string);
    if (!qn_is_number(key) && key->type != QN_VALUE_NONE)
        return qn_run_fail(w->r, "a key is %s, which JSON has not", qn_value_type_name(key));
    QN_TRY(put(w, "\"", 1));
    QN_TRY(put_number(w, key));
    return put(w, "\"", 1);
}

static int order_of_entries(const void *a, const void *b)
{
    int order = 0;
    const qn_dict_entry *const *x = a, *const *y = b;
    (void)qn_value_order(&(*x)->key, &(*y)->key, &order);
    return order;
}

/* Makes a sorted copy of the entries. Keys of different types have no order. */
static qn_status sorted_entries(writer *w, const qn_dict *dict, const qn_dict_entry ***out)
{
    uint64_t compared = 0;
    for (size_t i = 0; i < dict->n; i++)
        compared += 1 + qn_value_weight(&dict->entries[i].key);
    for (size_t n = dict->n; w->style->sort_keys && n; n /= 2)
        QN_TRY(qn_run_work(w->r, compared));
    QN_TRY(qn_arena_alloc(&w->r->arena, out, dict->n, sizeof **out));
    for (size_t i = 0; i < dict->n; i++) {
        int order;
        (*out)[i] = &dict->entries[i];
        if (w->style->sort_keys && !qn_value_order(&dict->entries[0].key, &dict->entries[i].key, &order))
            return qn_run_fail(w->r, "keys of different types cannot be sorted");
    }
    if (w->style->sort_keys && dict->n)
        qsort(*out, dict->n, sizeof **out, order_of_entries);
    return QN_OK;
}

static qn_status put_dict(writer *w, const qn_dict *dict)
{
    const qn_dict_entry **entries;
    QN_TRY(sorted_entries(w, dict, &entries));
    QN_TRY(put(w, "{", 1));
    w->level++;
    for (size_t i = 0; i < dict->n; i++) {
        if (i)
            QN_TRY(put_separator(w, w->style->item_separator, w->style->n_item_separator));
        QN_TRY(put_line(w));
        QN_TRY(put_key(w, &entries[i]->key));
        QN_TRY(put_separator(w, w->style->key_separator, w->style->n_key_separator));
        QN_TRY(put_value(w, &entries[i]->value));
    }
    w->level--;
    if (dict->n)
        QN_TRY(put_line(w));
    return put(w, "}", 1);
}

static qn_status put_value(writer *w, const qn_value *v)
{
    qn_status status;
    QN_TRY(qn_run_enter(w->r));
    switch (v->type) {
    case QN_VALUE_NONE:
    case QN_VALUE_BOOL:
    case QN_VALUE_INT:
    case QN_VALUE_FLOAT: status = put_number(w, v); break;
    case QN_VALUE_STRING: status = put_string(w, v->u.string); break;
    case QN_VALUE_LIST:
    case QN_VALUE_TUPLE: status = put_list(w, v->u.list); break;
    case QN_VALUE_DICT: status = put_dict(w, v->u.dict); break;
    default: status = qn_run_fail(w->r, "%s cannot be written as JSON", qn_value_type_name(v)); break;
    }
    w->r->depth--;
    return status;
}

qn_status qn_to_json(qn_run *r, const qn_value *value, const qn_json_style *style, qn_value *out)
{
    writer w = { .r = r, .b = { .arena = &r->arena }, .style = style, .indent = qn_value_none() };
    if (style->indent && qn_is_integer(style->indent)) {
        enum { MOST_SPACES = 100 };
        char spaces[MOST_SPACES];
        const int64_t n = qn_integer_of(style->indent);
        if (n > MOST_SPACES)
            return qn_run_fail(r, "an indent of more than %d", MOST_SPACES);
        memset(spaces, ' ', sizeof spaces);
        QN_TRY(qn_value_copy_text(&r->arena, spaces, n > 0 ? (size_t)n : 0, QN_FROM_DATA, &w.indent));
    } else if (style->indent && style->indent->type != QN_VALUE_NONE) {
        QN_TRY(qn_want_string(r, style->indent, "the indent"));
        w.indent = *style->indent;
    }
    QN_TRY(put_value(&w, value));
    return qn_builder_finish(&w.b, out);
}

qn_status qn_from_json(qn_run *r, const qn_value *text, qn_value *out)
{
    json_error_t error;
    size_t left = (r->arena.limit - r->arena.bytes) / 2; /* the parsed values count as much as those made from them */
    const qn_json_limits limits = { .take = qn_json_take, .user = &left };
    QN_TRY(qn_run_work(r, text->u.string->length)); /* a value may take as little as two bytes */
    json_t *json = qn_json_decode(text->u.string->data, text->u.string->length, JSON_DECODE_ANY, &limits, &error);
    if (!json)
        return qn_run_fail(r, "not JSON: %s", error.text);
    const qn_status status = qn_value_from_json(&r->arena, json, out);
    json_decref(json);
    return status;
}
