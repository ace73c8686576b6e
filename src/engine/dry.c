/* The breakers of DRY, which penalises repetitions (qn_sampling): converts texts to token sequences, and token
 * sequences to the form that samplers use. */
#include "engine/dry.h"

#include "base/memory.h"
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- Of requests ---- */

qn_status qn_dry_check(const qn_token *given, size_t n)
{
    size_t length = 0;
    if (n && !given)
        return qn_fail(QN_ERR_INVALID, "dry_breakers: NULL, expected %zu tokens", n);
    for (size_t i = 0; i < n; i++) {
        if (given[i] < -1)
            return qn_fail(QN_ERR_INVALID, "dry_breakers: %d, expected a token, or -1 behind a sequence",
                           (int)given[i]);
        if (given[i] == -1 && !length)
            return qn_fail(QN_ERR_INVALID, "dry_breakers: a sequence of no tokens, expected at least one");
        length = given[i] == -1 ? 0 : length + 1;
        if (length > QN_MAX_DRY_BREAKER_BYTES)
            return qn_fail(QN_ERR_INVALID, "dry_breakers: a sequence of more than %d tokens", QN_MAX_DRY_BREAKER_BYTES);
    }
    return length ? qn_fail(QN_ERR_INVALID, "dry_breakers: the last sequence has no -1 behind it") : QN_OK;
}

static size_t count_sequences(const qn_token *given, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += given[i] == -1;
    return count;
}

/* Fills the breakers from tokens. Each sequence is stored in reverse, because it is compared from its end. */
static void fill(qn_sample_breakers *breakers, const qn_token *given)
{
    qn_token *to = breakers->tokens;
    for (size_t i = 0; i < breakers->n; i++) {
        size_t length = 0;
        while (given[length] >= 0)
            length++;
        breakers->sequences[i] = to;
        for (size_t j = length; j--;)
            *to++ = given[j];
        *to++ = -1;
        given += length + 1;
    }
}

qn_status qn_dry_create(const qn_token *given, size_t n, qn_sample_breakers **out)
{
    qn_sample_breakers *breakers;
    *out = NULL;
    QN_TRY(qn_alloc(&breakers, 1, sizeof *breakers, "sampler"));
    breakers->n = count_sequences(given, n);
    breakers->n_tokens = n;
    if (qn_alloc(&breakers->tokens, n, sizeof *breakers->tokens, "sampler") ||
        qn_alloc(&breakers->sequences, breakers->n, sizeof *breakers->sequences, "sampler")) {
        qn_dry_free(breakers);
        return QN_ERR_MEMORY;
    }
    fill(breakers, given);
    qn_sample_sort_breakers(breakers);
    *out = breakers;
    return QN_OK;
}

void qn_dry_free(qn_sample_breakers *breakers)
{
    if (!breakers)
        return;
    qn_free(breakers->sequences);
    qn_free(breakers->tokens);
    qn_free(breakers);
}

size_t qn_dry_bytes(const qn_sample_breakers *breakers)
{
    return breakers ? sizeof *breakers + breakers->n_tokens * sizeof *breakers->tokens +
                          breakers->n * sizeof *breakers->sequences
                    : 0;
}

/* ---- Of texts ---- */

const char *const *qn_dry_default_breakers(size_t *n)
{
    static const char *const texts[] = { "\n", ":", "\"", "*" };
    *n = sizeof texts / sizeof *texts;
    return texts;
}

typedef struct token_list {
    qn_token *tokens; /* [n] */
    size_t n, capacity;
} token_list;

typedef struct breaker_search {
    const qn_tokenizer *tokenizer;
    const char *const *texts; /* [n_texts] */
    size_t lengths[QN_MAX_DRY_BREAKERS];
    token_list *rests;  /* [n_texts * QN_MAX_DRY_BREAKER_BYTES] tokens of the rest of a text after its first bytes, made
                           when needed */
    uint8_t first[256]; /* 1 + the first text that begins with a byte; 0: none */
    uint8_t next[QN_MAX_DRY_BREAKERS]; /* 1 + the next one with the same byte */
    token_list found;
    size_t most;
} breaker_search;

static bool is_repeated(const char *const *texts, size_t n, size_t at)
{
    for (size_t i = at + 1; i < n; i++)
        if (!strcmp(texts[i], texts[at]))
            return true;
    return false;
}

static qn_status begin(const qn_model *model, const char *const *texts, size_t n, breaker_search *search)
{
    QN_TRY(qn_model_tokenizer(model, &search->tokenizer));
    search->texts = texts;
    search->most = 4 * qn_tokenizer_n_vocab(search->tokenizer);
    if (n > QN_MAX_DRY_BREAKERS)
        return qn_fail(QN_ERR_INVALID, "dry_sequence_breakers: %zu texts, expected at most %d", n, QN_MAX_DRY_BREAKERS);
    for (size_t i = n; i--;) {
        const size_t length = strnlen(texts[i], QN_MAX_DRY_BREAKER_BYTES + 1);
        if (!length || length > QN_MAX_DRY_BREAKER_BYTES)
            return qn_fail(QN_ERR_INVALID, "dry_sequence_breakers: text %zu is %s, expected 1 to %d bytes", i + 1,
                           length ? "longer" : "empty", QN_MAX_DRY_BREAKER_BYTES);
        if (is_repeated(texts, n, i))
            continue;
        uint8_t *first = &search->first[(unsigned char)texts[i][0]];
        search->lengths[i] = length;
        search->next[i] = *first;
        *first = (uint8_t)(i + 1);
    }
    return qn_alloc(&search->rests, n * QN_MAX_DRY_BREAKER_BYTES, sizeof *search->rests, "dry_sequence_breakers");
}

/* Adds a sequence: a token, the tokens of `rest`, -1. */
static qn_status add(breaker_search *search, qn_token token, const token_list *rest)
{
    token_list *found = &search->found;
    const size_t n = found->n + (rest ? rest->n : 0) + 2;
    if (n > search->most)
        return qn_fail(QN_ERR_INVALID, "dry_sequence_breakers: the texts are more than the %zu tokens that they may be",
                       search->most);
    QN_TRY(qn_realloc_array(&found->tokens, &found->capacity, n, sizeof *found->tokens, "dry_sequence_breakers"));
    found->tokens[found->n] = token;
    if (rest)
        memcpy(found->tokens + found->n + 1, rest->tokens, rest->n * sizeof *rest->tokens);
    found->tokens[n - 1] = -1;
    found->n = n;
    return QN_OK;
}

/* Adds the sequence of a token that ends with the first bytes of a text. Adds nothing if no tokens spell the rest of
 * the text, or too many. */
static qn_status add_beginning(breaker_search *search, qn_token token, size_t text, size_t length)
{
    token_list *rest = &search->rests[text * QN_MAX_DRY_BREAKER_BYTES + length];
    if (!rest->tokens)
        QN_TRY(qn_tokenizer_encode_rest(search->tokenizer, search->texts[text] + length, search->lengths[text] - length,
                                        false, &rest->tokens, &rest->n));
    return rest->n && rest->n < QN_MAX_DRY_BREAKER_BYTES ? add(search, token, rest) : QN_OK;
}

static qn_status add_token(breaker_search *search, qn_token token)
{
    const char *bytes;
    size_t n;
    bool contains = false;
    QN_TRY(qn_tokenizer_piece(search->tokenizer, token, &bytes, &n));
    for (size_t at = 0; at < n; at++)
        for (size_t i = search->first[(unsigned char)bytes[at]]; i; i = search->next[i - 1]) {
            const size_t whole = search->lengths[i - 1], length = n - at < whole ? n - at : whole;
            if (memcmp(bytes + at, search->texts[i - 1], length) != 0)
                continue;
            if (length == whole)
                contains = true;
            else
                QN_TRY(add_beginning(search, token, i - 1, length));
        }
    return contains ? add(search, token, NULL) : QN_OK;
}

static qn_status search_all(const qn_model *model, const char *const *texts, size_t n, breaker_search *search)
{
    QN_TRY(begin(model, texts, n, search));
    QN_TRY(
        qn_realloc_array(&search->found.tokens, &search->found.capacity, 1, sizeof(qn_token), "dry_sequence_breakers"));
    const size_t n_vocab = n ? qn_tokenizer_n_vocab(search->tokenizer) : 0;
    for (size_t token = 0; token < n_vocab; token++)
        QN_TRY(add_token(search, (qn_token)token));
    return QN_OK;
}

qn_status qn_dry_breakers(const qn_model *model, const char *const *texts, size_t n, qn_token **breakers, size_t *count)
{
    breaker_search search = { .most = 0 };
    const qn_status status = search_all(model, texts, n, &search);
    for (size_t i = 0; search.rests && i < n * QN_MAX_DRY_BREAKER_BYTES; i++)
        free(search.rests[i].tokens);
    qn_free(search.rests);
    if (status)
        free(search.found.tokens);
    *breakers = status ? NULL : search.found.tokens;
    *count = status ? 0 : search.found.n;
    return status;
}
