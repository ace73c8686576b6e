/* Preparing a vocabulary: its tries, and what its tokens do inside a JSON string. */
#include "text/grammar/vocab.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

static qn_status no_memory(void)
{
    return qn_fail(QN_ERR_MEMORY, "grammar vocabulary: no memory");
}

const char *qn_grammar_vocab_bytes(const qn_grammar_vocab *v, qn_token token, size_t *length)
{
    *length = 0;
    if (token < 0 || (size_t)token >= v->n_tokens)
        return NULL;
    *length = v->offsets[token + 1] - v->offsets[token];
    return *length ? v->bytes + v->offsets[token] : NULL;
}

/* ---- Tries ---- */

static int compare_tokens(const void *a, const void *b, void *vocab)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    size_t n_x, n_y;
    const char *text_x = qn_grammar_vocab_bytes(vocab, x, &n_x), *text_y = qn_grammar_vocab_bytes(vocab, y, &n_y);
    const int order = memcmp(text_x, text_y, n_x < n_y ? n_x : n_y);
    return order ? order : n_x != n_y ? (n_x > n_y) - (n_x < n_y) : (x > y) - (x < y);
}

/* The trie of tokens in the order of their bytes. With `same`, tokens of equal bytes are linked; else only the first one may
 * be among the tokens. */
static qn_status make_trie(const qn_grammar_vocab *v, const int32_t *tokens, size_t n, int32_t *same, qn_trie *trie)
{
    uint32_t open[QN_TOKEN_BYTES + 1];
    size_t capacity = 0, depth = 0;
    const char *last = NULL;
    for (size_t i = 0; i < n; i++) {
        size_t length, shared = 0;
        const char *text = qn_grammar_vocab_bytes(v, tokens[i], &length);
        while (shared < depth && shared < length && last[shared] == text[shared])
            shared++;
        if (same && shared == length && shared == depth) {
            same[tokens[i - 1]] = tokens[i];
            continue;
        }
        while (depth > shared)
            trie->nodes[open[depth--]].end = (uint32_t)trie->n;
        QN_TRY(qn_realloc_array(&trie->nodes, &capacity, trie->n + length - depth, sizeof *trie->nodes, "trie"));
        while (depth < length) {
            const uint8_t byte = (uint8_t)text[depth++];
            open[depth] = (uint32_t)trie->n;
            trie->nodes[trie->n++] = (qn_trie_node){ .token = -1, .byte = byte, .depth = (uint8_t)depth };
        }
        trie->nodes[open[depth]].token = tokens[i];
        last = text;
    }
    for (; depth > 0; depth--)
        trie->nodes[open[depth]].end = (uint32_t)trie->n;
    return QN_OK;
}

/* ---- Inside a JSON string ---- */

typedef enum inside { LEAVES, STAYS, CLOSES } inside;

/* What a token does from between two characters on, and how many characters it begins: each needs its place. */
static inside run_string(const qn_grammar_vocab *v, int32_t token, qn_string_form form, uint32_t *n_characters)
{
    const qn_string_table *table = qn_string_machine(form);
    size_t length;
    const char *text = qn_grammar_vocab_bytes(v, token, &length);
    uint8_t state = 0;
    *n_characters = 0;
    for (size_t i = 0; i < length; i++) {
        *n_characters += !state;
        state = (*table)[state][(uint8_t)text[i]];
        if (state == QN_STRING_REJECTED)
            return LEAVES;
        if (state == QN_STRING_END)
            return CLOSES;
    }
    return STAYS;
}

static int compare_long(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The masks and tries of strings; `tokens` in the order of their bytes. */
static qn_status prepare_strings(qn_grammar_vocab *v, const int32_t *tokens, size_t n)
{
    int32_t *closing = malloc((n + 1) * sizeof *closing);
    uint64_t *longer = malloc((n + 1) * sizeof *longer);
    size_t n_closing = 0;
    qn_status status = closing && longer ? QN_OK : no_memory();
    for (int i = 0; i < QN_STRING_FORMS && status == QN_OK; i++)
        status = qn_alloc(&v->inside[i], v->n_words, sizeof(uint32_t), "grammar vocabulary");
    for (int i = 0; i < QN_SHORT_STRINGS && status == QN_OK; i++)
        status = qn_alloc(&v->inside_short[i], v->n_words, sizeof(uint32_t), "grammar vocabulary");
    for (size_t i = 0; i < n && status == QN_OK; i++) {
        uint32_t characters;
        for (int form = 1; form < QN_STRING_FORMS; form++)
            if (run_string(v, tokens[i], (qn_string_form)form, &characters) == STAYS)
                for (int32_t t = tokens[i]; t >= 0; t = v->same[t])
                    qn_mask_set(v->inside[form], (uint32_t)t);
        const inside what = run_string(v, tokens[i], QN_STRING_VALUE, &characters);
        if (what == CLOSES)
            closing[n_closing++] = tokens[i];
        for (int32_t t = what == STAYS ? tokens[i] : -1; t >= 0; t = v->same[t]) {
            qn_mask_set(v->inside[QN_STRING_VALUE], (uint32_t)t);
            for (uint32_t most = characters; most < QN_SHORT_STRINGS; most++)
                qn_mask_set(v->inside_short[most], (uint32_t)t);
            if (characters >= QN_SHORT_STRINGS)
                longer[v->n_long++] = (uint64_t)characters << 32 | (uint32_t)t;
        }
    }
    if (status == QN_OK)
        status = make_trie(v, closing, n_closing, NULL, &v->closing);
    if (status == QN_OK)
        status = qn_alloc(&v->inside_long, v->n_long, sizeof *v->inside_long, "grammar vocabulary");
    if (status == QN_OK)
        status = qn_alloc(&v->long_characters, v->n_long, sizeof *v->long_characters, "grammar vocabulary");
    if (status == QN_OK) {
        qsort(longer, v->n_long, sizeof *longer, compare_long);
        for (size_t i = 0; i < v->n_long; i++) {
            v->inside_long[i] = (uint32_t)longer[i];
            v->long_characters[i] = (uint16_t)(longer[i] >> 32);
        }
    }
    free(closing);
    free(longer);
    return status;
}

/* ---- The vocabulary ---- */

/* The bytes of the tokens that may follow, and the end tokens. */
static qn_status copy_tokens(qn_grammar_vocab *v, const qn_tokenizer *tokenizer)
{
    size_t total = 0, length;
    const char *bytes;
    for (int pass = 0; pass < 2; pass++) {
        size_t at = 0;
        if (pass && !(v->bytes = malloc(total + 1)))
            return no_memory();
        v->n_ends = 0;
        for (size_t t = 0; t < v->n_tokens; t++) {
            const bool is_end = qn_tokenizer_is_eog(tokenizer, (int32_t)t);
            QN_TRY(qn_tokenizer_piece(tokenizer, (int32_t)t, &bytes, &length));
            if (is_end)
                v->ends[v->n_ends++] = (int32_t)t;
            v->offsets[t] = (uint32_t)at;
            if (is_end || qn_tokenizer_is_special(tokenizer, (int32_t)t) || length > QN_TOKEN_BYTES)
                continue;
            if (pass && length)
                memcpy(v->bytes + at, bytes, length);
            at += length;
        }
        v->offsets[v->n_tokens] = (uint32_t)at;
        total = at;
    }
    return QN_OK;
}

static qn_status prepare(qn_grammar_vocab *v, const qn_tokenizer *tokenizer)
{
    QN_TRY(qn_alloc(&v->offsets, v->n_tokens + 1, sizeof *v->offsets, "grammar vocabulary"));
    QN_TRY(qn_alloc(&v->same, v->n_tokens, sizeof *v->same, "grammar vocabulary"));
    QN_TRY(qn_alloc(&v->ends, v->n_tokens, sizeof *v->ends, "grammar vocabulary"));
    QN_TRY(qn_alloc(&v->cached, v->n_cached, sizeof *v->cached, "masks"));
    QN_TRY(qn_alloc(&v->cached_masks, v->n_cached * v->n_words, sizeof *v->cached_masks, "masks"));
    QN_TRY(copy_tokens(v, tokenizer));
    int32_t *order = malloc((v->n_tokens + 1) * sizeof *order);
    size_t n = 0, n_distinct = 0;
    if (!order)
        return no_memory();
    for (size_t t = 0; t < v->n_tokens; t++) {
        v->same[t] = -1;
        if (v->offsets[t + 1] > v->offsets[t])
            order[n++] = (int32_t)t;
    }
    qsort_r(order, n, sizeof *order, compare_tokens, v);
    qn_status status = make_trie(v, order, n, v->same, &v->all);
    int32_t last = -1;
    for (size_t i = 0; i < n; i++) {
        const int32_t token = order[i];
        if (last < 0 || v->same[last] != token)
            order[n_distinct++] = token;
        last = token;
    }
    if (status == QN_OK)
        status = prepare_strings(v, order, n_distinct);
    free(order);
    return status;
}

qn_status qn_grammar_vocab_create(const qn_tokenizer *tokenizer, size_t n_cached, qn_grammar_vocab **out)
{
    *out = NULL;
    qn_grammar_vocab *v = calloc(1, sizeof *v);
    if (!v || pthread_mutex_init(&v->lock, NULL) != 0) {
        free(v);
        return no_memory();
    }
    v->n_tokens = qn_tokenizer_n_vocab(tokenizer);
    v->n_words = (v->n_tokens + 31) / 32;
    v->n_cached = (n_cached + QN_CACHE_WAYS - 1) / QN_CACHE_WAYS * QN_CACHE_WAYS;
    const qn_status status = prepare(v, tokenizer);
    if (status == QN_OK)
        *out = v;
    else
        qn_grammar_vocab_free(v);
    return status;
}

void qn_grammar_vocab_free(qn_grammar_vocab *v)
{
    if (!v)
        return;
    free(v->bytes);
    qn_free(v->offsets);
    qn_free(v->same);
    qn_free(v->ends);
    free(v->all.nodes);
    free(v->closing.nodes);
    for (int i = 0; i < QN_STRING_FORMS; i++)
        qn_free(v->inside[i]);
    for (int i = 0; i < QN_SHORT_STRINGS; i++)
        qn_free(v->inside_short[i]);
    qn_free(v->inside_long);
    qn_free(v->long_characters);
    qn_free(v->cached);
    qn_free(v->cached_masks);
    pthread_mutex_destroy(&v->lock);
    free(v);
}
