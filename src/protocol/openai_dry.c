/* DRY ("don't repeat yourself", qn_sampling in quern/quern.h): its fields in a body, and its breakers. */
#include "protocol/openai.h"

#include "base/memory.h"

#include <math.h>
#include <string.h>

enum { MOST_LENGTH = 1000 };
static const double MOST = 1e6;
static const char BREAKERS[] = "dry_sequence_breakers";

static bool take_breakers(qn_text_exchange *x, const json_t *body, qn_refusal *refusal)
{
    static const char expected[] = "an array of strings that are neither empty nor have U+0000";
    json_t *given = qn_field(body, BREAKERS);
    const size_t n = json_array_size(given);
    if (!given)
        return true;
    if (!json_is_array(given))
        return qn_refuse_type(refusal, BREAKERS, given, expected);
    if (n > QN_MAX_DRY_BREAKERS)
        return qn_refuse(refusal, 400, NULL, BREAKERS, "'%s' has %zu strings, at most %d are allowed", BREAKERS, n,
                         QN_MAX_DRY_BREAKERS);
    if (qn_alloc(&x->breakers, n, sizeof *x->breakers, BREAKERS))
        return qn_refuse_memory(refusal);
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_array_get(given, i);
        const size_t length = json_string_length(text);
        if (!json_is_string(text) || !length || strlen(json_string_value(text)) != length)
            return qn_refuse_type(refusal, BREAKERS, text, expected);
        if (length > QN_MAX_DRY_BREAKER_BYTES)
            return qn_refuse(refusal, 400, NULL, BREAKERS, "'%s' has a string of %zu bytes, at most %d are allowed",
                             BREAKERS, length, QN_MAX_DRY_BREAKER_BYTES);
        x->breakers[i] = json_string_value(text);
    }
    x->given_breakers = json_incref(given);
    x->n_breakers = n;
    return true;
}

bool qn_openai_take_dry(qn_text_exchange *x, const json_t *body, qn_refusal *refusal)
{
    qn_sampling *s = &x->params.sampling;
    int64_t length = -1, last_n = -2;
    s->dry_multiplier = s->dry_base = NAN;
    if (!qn_field_number(body, "dry_multiplier", 0, MOST, &s->dry_multiplier, refusal) ||
        !qn_field_number(body, "dry_base", 0, MOST, &s->dry_base, refusal) ||
        !qn_field_integer(body, "dry_allowed_length", 0, MOST_LENGTH, &length, refusal) ||
        !qn_field_integer(body, "dry_penalty_last_n", -1, INT32_MAX, &last_n, refusal))
        return false;
    if (s->dry_base < 1)
        s->dry_base = NAN; /* the default, as in llama.cpp */
    s->dry_allowed_length = (int)length;
    s->dry_penalty_last_n = (int)last_n;
    return take_breakers(x, body, refusal);
}

const char *const *qn_openai_breakers(const qn_text_exchange *x, size_t *n)
{
    if (x->breakers || x->served->breakers) {
        *n = x->breakers ? x->n_breakers : x->served->n_breakers;
        return x->breakers ? x->breakers : x->served->breakers;
    }
    return qn_dry_default_breakers(n);
}

bool qn_openai_bind_dry(qn_text_exchange *x, qn_refusal *refusal)
{
    qn_sampling *s = &x->params.sampling;
    size_t n;
    const char *const *texts = qn_openai_breakers(x, &n);
    if (!(s->dry_multiplier > 0) || !s->dry_penalty_last_n)
        return true;
    const qn_status status = qn_dry_breakers(x->served->model, texts, n, &x->breaker_tokens, &s->n_dry_breakers);
    if (status == QN_ERR_MEMORY)
        return qn_refuse_memory(refusal);
    if (status)
        return qn_refuse(refusal, 400, status == QN_ERR_UNSUPPORTED ? "unsupported" : NULL, BREAKERS, "%s",
                         qn_error_text());
    s->dry_breakers = x->breaker_tokens;
    return qn_account_take(x->base.account, s->n_dry_breakers * sizeof *x->breaker_tokens) ||
           qn_refuse_over(x->base.account, refusal);
}
