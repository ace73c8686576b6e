/* Strings of a schema: lengths, patterns, formats and excluded constants, together in one DFA. */
#include "grammar/schema.h"

#include <string.h>

static const char any_text[] = "^[\\s\\S]*$";

/* ---- Patterns ---- */

static qn_status add_pattern(const qn_schema_compiler *c, qn_schema_patterns *patterns, const char *text, size_t length,
                             bool is_excluded)
{
    if (patterns->n == QN_SCHEMA_PATTERNS)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s/pattern: more than %d for one value", qn_schema_path(c),
                       QN_SCHEMA_PATTERNS);
    patterns->items[patterns->n].text = text;
    patterns->items[patterns->n].length = length;
    patterns->items[patterns->n++].is_excluded = is_excluded;
    return QN_OK;
}

static qn_status add_list(const qn_schema_compiler *c, qn_schema_patterns *patterns, json_t *list, bool is_excluded)
{
    json_t *item;
    size_t i;
    json_array_foreach(list, i, item) if (json_is_string(item))
        QN_TRY(add_pattern(c, patterns, json_string_value(item), json_string_length(item), is_excluded));
    return QN_OK;
}

qn_status qn_schema_find_patterns(const qn_schema_compiler *c, json_t *schema, qn_schema_patterns *patterns)
{
    json_t *pattern = json_object_get(schema, "pattern");
    const char *name = json_string_value(json_object_get(schema, "format")),
               *format = name ? qn_schema_format(name) : NULL;
    patterns->n = 0;
    if (pattern && !json_is_string(pattern))
        return qn_fail(QN_ERR_INVALID, "%s/pattern: not a string", qn_schema_path(c));
    if (name && !format && qn_schema_is_standard_format(name) && c->options.strict)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s/format: '%s' is not supported", qn_schema_path(c), name);
    if (pattern)
        QN_TRY(add_pattern(c, patterns, json_string_value(pattern), json_string_length(pattern), false));
    if (format)
        QN_TRY(add_pattern(c, patterns, format, strlen(format), false));
    QN_TRY(add_list(c, patterns, json_object_get(schema, QN_SCHEMA_LIKE), false));
    return add_list(c, patterns, json_object_get(schema, QN_SCHEMA_UNLIKE), true);
}

qn_hash128 qn_schema_hash_patterns(const qn_schema_patterns *patterns)
{
    uint64_t parts[3 * QN_SCHEMA_PATTERNS];
    for (size_t i = 0; i < patterns->n; i++) {
        const qn_hash128 text = qn_keyed_hash128(patterns->items[i].text, patterns->items[i].length);
        parts[3 * i] = text.low;
        parts[3 * i + 1] = text.high;
        parts[3 * i + 2] = patterns->items[i].is_excluded;
    }
    return qn_keyed_hash128(parts, 3 * patterns->n * sizeof *parts);
}

qn_status qn_schema_compile_pattern(qn_schema_compiler *c, const char *regex, size_t length, bool in_string,
                                    qn_dfa *out, bool *is_none)
{
    uint32_t expr;
    QN_TRY(qn_expr_regex(&c->exprs, regex, length, true, qn_schema_path(c), &expr));
    const qn_status status = qn_dfa_compile(&c->exprs, expr, in_string, qn_schema_path(c), &c->grammar->steps, out);
    *is_none = status == QN_ERR_INVALID;
    return *is_none ? QN_OK : status;
}

/* Keeps of *texts those that `dfa`, which is freed, accepts or refuses. *is_none: none is left. *texts is freed unless
 * some are. */
static qn_status keep(qn_schema_compiler *c, qn_dfa *dfa, bool is_excluded, qn_dfa *texts, bool *is_none)
{
    qn_dfa kept = { 0 };
    const qn_status status = qn_dfa_meet(texts, dfa, is_excluded, qn_schema_path(c), &c->grammar->steps, &kept);
    qn_dfa_free(dfa);
    qn_dfa_free(texts);
    *texts = kept;
    *is_none = status == QN_ERR_INVALID;
    return *is_none ? QN_OK : status;
}

/* A copy of a DFA, as all of its texts. */
static qn_status copy(qn_schema_compiler *c, const qn_dfa *texts, qn_dfa *out)
{
    return qn_dfa_meet(texts, texts, false, qn_schema_path(c), &c->grammar->steps, out);
}

qn_status qn_schema_meet_patterns(qn_schema_compiler *c, const qn_schema_patterns *patterns, bool in_string,
                                  const qn_dfa *texts, qn_dfa *out, bool *is_none)
{
    bool has_texts = texts || !patterns->n || patterns->items[0].is_excluded, matches_none = false;
    qn_status status = QN_OK;
    *is_none = false;
    if (has_texts)
        QN_TRY(texts ? copy(c, texts, out)
                     : qn_schema_compile_pattern(c, any_text, sizeof any_text - 1, in_string, out, &matches_none));
    for (size_t i = 0; i < patterns->n && status == QN_OK && !*is_none; i++) {
        const bool is_excluded = patterns->items[i].is_excluded;
        qn_dfa dfa;
        status = qn_schema_compile_pattern(c, patterns->items[i].text, patterns->items[i].length, in_string, &dfa,
                                           &matches_none);
        if (status != QN_OK || (matches_none && is_excluded))
            continue;
        if (matches_none) {
            *is_none = true;
        } else if (has_texts) {
            status = keep(c, &dfa, is_excluded, out, is_none);
            has_texts = status == QN_OK && !*is_none;
        } else {
            *out = dfa;
            has_texts = true;
        }
    }
    if (has_texts && (status != QN_OK || *is_none))
        qn_dfa_free(out);
    return status;
}

/* ---- Sets of strings ---- */

static qn_status keep_lengths(qn_schema_compiler *c, json_t *schema, bool in_string, qn_dfa *dfa, bool *is_none)
{
    uint32_t min, max, expr;
    qn_dfa lengths;
    QN_TRY(qn_schema_count(c, schema, "minLength", 0, &min));
    QN_TRY(qn_schema_count(c, schema, "maxLength", QN_UNLIMITED, &max));
    *is_none = min > max;
    if (*is_none || (!min && max == QN_UNLIMITED))
        return QN_OK;
    QN_TRY(qn_expr_any(&c->exprs, min, max, &expr));
    QN_TRY(qn_dfa_compile(&c->exprs, expr, in_string, qn_schema_path(c), &c->grammar->steps, &lengths));
    return keep(c, &lengths, false, dfa, is_none);
}

/* Keeps the texts that are among constants, or that are not. */
static qn_status keep_constants(qn_schema_compiler *c, json_t *constants, bool is_excluded, bool in_string, qn_dfa *dfa,
                                bool *is_none)
{
    uint32_t expr, last = 0, part;
    json_t *value;
    size_t i;
    qn_dfa listed;
    QN_TRY(qn_expr_add(&c->exprs, (qn_expr){ .kind = QN_EXPR_ALT }, &expr));
    json_array_foreach(constants, i, value)
    {
        if (!json_is_string(value))
            continue;
        QN_TRY(qn_expr_characters(&c->exprs, json_string_value(value), json_string_length(value), &part));
        qn_expr_append(&c->exprs, expr, &last, part);
    }
    *is_none = !last && !is_excluded;
    if (!last)
        return QN_OK;
    QN_TRY(qn_dfa_compile(&c->exprs, expr, in_string, qn_schema_path(c), &c->grammar->steps, &listed));
    return keep(c, &listed, is_excluded, dfa, is_none);
}

static qn_status keep_strings(qn_schema_compiler *c, json_t *schema, bool in_string, qn_dfa *dfa, bool *is_none)
{
    qn_schema_patterns patterns;
    qn_dfa matching;
    json_t *constant = json_object_get(schema, "const"), *values = json_object_get(schema, "enum"), *list;
    *is_none = false;
    QN_TRY(qn_schema_find_patterns(c, schema, &patterns));
    if (patterns.n) {
        QN_TRY(qn_schema_meet_patterns(c, &patterns, in_string, dfa, &matching, is_none));
        if (*is_none)
            return QN_OK;
        qn_dfa_free(dfa);
        *dfa = matching;
    }
    QN_TRY(keep_lengths(c, schema, in_string, dfa, is_none));
    if (constant && !*is_none) {
        QN_TRY(qn_schema_own(c, list = json_pack("[O]", constant)));
        QN_TRY(keep_constants(c, list, false, in_string, dfa, is_none));
    }
    if (json_is_array(values) && !*is_none)
        QN_TRY(keep_constants(c, values, false, in_string, dfa, is_none));
    if (!json_object_get(schema, "not") || *is_none)
        return QN_OK;
    QN_TRY(qn_schema_own(c, list = qn_schema_excluded(schema)));
    return keep_constants(c, list, true, in_string, dfa, is_none);
}

qn_status qn_schema_keep_strings(qn_schema_compiler *c, json_t *schema, bool in_string, qn_dfa *dfa, bool *is_none)
{
    const qn_status status = keep_strings(c, schema, in_string, dfa, is_none);
    if (status != QN_OK || *is_none)
        qn_dfa_free(dfa);
    return status;
}

/* ---- Values ---- */

enum { NO_STRINGS = INT32_MAX }; /* stands for a DFA: no string is allowed */

/* Makes the DFA of patterns, with the lengths included. */
static qn_status compile_patterns(qn_schema_compiler *c, const qn_schema_patterns *patterns, const qn_string_rule *rule,
                                  uint32_t *id)
{
    bool is_none;
    qn_dfa dfa;
    QN_TRY(qn_schema_meet_patterns(c, patterns, true, NULL, &dfa, &is_none));
    if (!is_none && (rule->min || rule->max != QN_UNLIMITED)) {
        const qn_status status = qn_dfa_count(&dfa, rule->min, rule->max, qn_schema_path(c), &c->grammar->steps);
        if (status != QN_OK)
            qn_dfa_free(&dfa);
        is_none = status == QN_ERR_INVALID;
        if (!is_none)
            QN_TRY(status);
    }
    *id = NO_STRINGS;
    return is_none ? QN_OK : qn_grammar_add_dfa(c->grammar, &dfa, id);
}

/* Equal patterns share a DFA, so that alternatives in the same state of it are walked as one. */
static qn_status find_patterns(qn_schema_compiler *c, const qn_schema_patterns *patterns, qn_string_rule *rule)
{
    const qn_hash128 texts = qn_schema_hash_patterns(patterns);
    const uint64_t parts[] = { texts.low, texts.high, rule->min, rule->max };
    const qn_hash128 hash = qn_keyed_hash128(parts, sizeof parts);
    const size_t slot = hash.low % QN_SCHEMA_NUMBERS;
    if (!c->patterns[slot].dfa || c->patterns[slot].low != hash.low || c->patterns[slot].high != hash.high) {
        uint32_t id;
        QN_TRY(compile_patterns(c, patterns, rule, &id));
        if (id == NO_STRINGS) {
            *rule = (qn_string_rule){ .form = QN_STRING_VALUE, .min = 1, .max = 0, .dfa = -1 };
            return QN_OK;
        }
        c->patterns[slot].low = hash.low;
        c->patterns[slot].high = hash.high;
        c->patterns[slot].dfa = id + 1;
    }
    *rule = (qn_string_rule){ .form = QN_STRING_VALUE, .max = QN_UNLIMITED, .dfa = (int32_t)c->patterns[slot].dfa - 1 };
    return QN_OK;
}

/* Adds patterns. If they and the lengths together are too large for an automaton, and that may be ignored, the lengths
 * are, and if need be the patterns. */
static qn_status add_patterns(qn_schema_compiler *c, const qn_schema_patterns *patterns, qn_string_rule *rule)
{
    qn_string_rule any_length = { .form = rule->form, .max = QN_UNLIMITED, .dfa = -1 };
    qn_status status = find_patterns(c, patterns, rule);
    if (qn_schema_may_ignore(c, status) && (status = find_patterns(c, patterns, &any_length)) == QN_OK)
        *rule = any_length;
    return status;
}

/* Removes what `not` excludes. The string becomes a DFA that includes its lengths. */
static qn_status exclude(qn_schema_compiler *c, json_t *schema, qn_string_rule *rule, bool *is_none)
{
    static const qn_schema_patterns any = { .items = { { any_text, sizeof any_text - 1, false } }, .n = 1 };
    json_t *excluded = json_object_get(schema, "not");
    uint32_t dfa;
    *is_none = false;
    if (!qn_schema_excludes_strings(schema) ||
        (!json_object_get(excluded, "const") && !json_array_size(json_object_get(excluded, "enum"))))
        return QN_OK;
    if (rule->dfa < 0)
        QN_TRY(add_patterns(c, &any, rule));
    *is_none = rule->min > rule->max;
    if (*is_none)
        return QN_OK;
    dfa = (uint32_t)rule->dfa;
    QN_TRY(qn_schema_exclude(c, schema, true, &dfa, is_none));
    rule->dfa = (int32_t)dfa;
    return QN_OK;
}

qn_status qn_schema_string(qn_schema_compiler *c, json_t *schema, uint32_t *entry)
{
    qn_string_rule rule = { .form = QN_STRING_VALUE, .dfa = -1 };
    qn_schema_patterns patterns;
    uint32_t id;
    QN_TRY(qn_schema_count(c, schema, "minLength", 0, &rule.min));
    QN_TRY(qn_schema_count(c, schema, "maxLength", QN_UNLIMITED, &rule.max));
    *entry = QN_NODE_NEVER;
    if (rule.min > rule.max)
        return QN_OK;
    QN_TRY(qn_schema_find_patterns(c, schema, &patterns));
    const qn_status status = patterns.n ? add_patterns(c, &patterns, &rule) : QN_OK;
    if (!qn_schema_may_ignore(c, status))
        QN_TRY(status);
    bool is_none = rule.min > rule.max;
    if (!is_none)
        QN_TRY(exclude(c, schema, &rule, &is_none));
    if (is_none)
        return QN_OK;
    if (rule.dfa >= 0) { /* spelled as a JSON string */
        QN_TRY(qn_schema_byte(c, '"', c->end, &id));
        QN_TRY(qn_schema_node(c, QN_DFA, (uint32_t)rule.dfa, id, &id));
        return qn_schema_byte(c, '"', id, entry);
    }
    QN_TRY(qn_grammar_add_string(c->grammar, rule, &id));
    QN_TRY(qn_schema_node(c, QN_STRING, id, c->end, &id));
    return qn_schema_byte(c, '"', id, entry);
}
