/* Prepares a vocabulary: its tries, and sets of tokens by class. */
#include "grammar/vocab.h"

#include "base/memory.h"
#include "base/strings.h"

#include <stdlib.h>
#include <string.h>

static qn_status no_memory(void)
{
    return qn_fail(QN_ERR_MEMORY, "grammar vocabulary: no memory");
}

/* A token, the first of those with equal bytes, and what is known of its text. */
typedef struct token_text {
    int32_t token;
    uint16_t n_characters; /* where the class is below QN_TEXT_CLASSES */
    uint8_t kind, trie;    /* the smallest class; the one trie that has it, beside QN_TRIE_CLOSING */
    bool closes;           /* a JSON string, read from between two characters */
} token_text;

/* ---- The order of tokens ---- */

/* A token with its first bytes as a number that sorts like them, so that few comparisons read the texts. */
typedef struct sorted_token {
    uint64_t head;
    int32_t token;
} sorted_token;

static uint64_t read_head(const char *text, size_t length)
{
    uint64_t head = 0;
    for (size_t i = 0; i < sizeof head; i++)
        head = head << 8 | (i < length ? (uint8_t)text[i] : 0);
    return head;
}

static bool have_equal_bytes(const qn_grammar_vocab *v, int32_t a, int32_t b)
{
    size_t n_a, n_b;
    const char *text_a = qn_grammar_vocab_bytes(v, a, &n_a), *text_b = qn_grammar_vocab_bytes(v, b, &n_b);
    return n_a == n_b && !memcmp(text_a, text_b, n_a);
}

static int compare_tokens(const void *a, const void *b, void *vocab)
{
    const sorted_token *x = a, *y = b;
    size_t n_x, n_y;
    if (x->head != y->head)
        return x->head < y->head ? -1 : 1;
    const char *text_x = qn_grammar_vocab_bytes(vocab, x->token, &n_x),
               *text_y = qn_grammar_vocab_bytes(vocab, y->token, &n_y);
    const int order = memcmp(text_x, text_y, n_x < n_y ? n_x : n_y);
    return order ? order : n_x != n_y ? (n_x > n_y) - (n_x < n_y) : (x->token > y->token) - (x->token < y->token);
}

/* Sorts the tokens by bytes. Of tokens with equal bytes `texts` gets the first; `same` links the rest.
 *
 *   sorted   [n_tokens] scratch */
static size_t find_order(qn_grammar_vocab *v, sorted_token *sorted, token_text *texts)
{
    size_t n = 0, n_distinct = 0;
    for (size_t t = 0; t < v->n_tokens; t++) {
        size_t length;
        const char *text = qn_grammar_vocab_bytes(v, (int32_t)t, &length);
        v->same[t] = -1;
        if (length)
            sorted[n++] = (sorted_token){ read_head(text, length), (int32_t)t };
    }
    qn_sort(sorted, n, sizeof *sorted, compare_tokens, v);
    for (size_t i = 0; i < n; i++) {
        const int32_t token = sorted[i].token;
        if (i && have_equal_bytes(v, sorted[i - 1].token, token))
            v->same[sorted[i - 1].token] = token;
        else
            texts[n_distinct++].token = token;
    }
    return n_distinct;
}

static int find_trie(const token_text *t, const char *text, size_t length)
{
    if (t->kind == QN_TEXT_CLASSES && (memchr(text, '\n', length) || memchr(text, '\r', length)))
        return QN_TRIE_LINES;
    return t->kind;
}

static void classify(const qn_grammar_vocab *v, token_text *texts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        token_text *t = &texts[i];
        uint32_t n_characters;
        size_t length;
        const char *text = qn_grammar_vocab_bytes(v, t->token, &length);
        t->kind = (uint8_t)qn_text_class_of(text, length, &n_characters);
        t->n_characters = (uint16_t)n_characters;
        t->trie = (uint8_t)find_trie(t, text, length);
    }
}

/* ---- Sets of tokens by their characters ---- */

static int compare_characters(const void *a, const void *b, void *characters)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    const uint16_t *n = characters;
    return n[x] != n[y] ? (n[x] > n[y]) - (n[x] < n[y]) : (x > y) - (x < y);
}

/* characters: [n_tokens] number of characters of each token, 0 for tokens outside the set */
static qn_status make_set(const qn_grammar_vocab *v, uint16_t *characters, bool is_counted, qn_token_set *set)
{
    QN_TRY(qn_alloc(&set->all, v->n_words, sizeof *set->all, "grammar vocabulary"));
    for (size_t t = 0; t < v->n_tokens; t++) {
        if (characters[t])
            qn_mask_set(set->all, (uint32_t)t);
        set->n_longer += characters[t] >= QN_SHORT_TEXTS;
    }
    if (!is_counted)
        return QN_OK;
    for (uint32_t most = 0; most < QN_SHORT_TEXTS; most++)
        QN_TRY(qn_alloc(&set->few[most], v->n_words, sizeof *set->all, "grammar vocabulary"));
    for (size_t t = 0; t < v->n_tokens; t++)
        if (characters[t] && characters[t] < QN_SHORT_TEXTS)
            qn_mask_set(set->few[characters[t]], (uint32_t)t);
    for (uint32_t most = 1; most < QN_SHORT_TEXTS; most++)
        for (size_t i = 0; i < v->n_words; i++)
            set->few[most][i] |= set->few[most - 1][i];
    QN_TRY(qn_alloc(&set->longer, set->n_longer, sizeof *set->longer, "grammar vocabulary"));
    QN_TRY(qn_alloc(&set->characters, set->n_longer, sizeof *set->characters, "grammar vocabulary"));
    for (size_t t = 0, i = 0; t < v->n_tokens; t++)
        if (characters[t] >= QN_SHORT_TEXTS)
            set->longer[i++] = (uint32_t)t;
    qn_sort(set->longer, set->n_longer, sizeof *set->longer, compare_characters, characters);
    for (size_t i = 0; i < set->n_longer; i++)
        set->characters[i] = characters[set->longer[i]];
    return QN_OK;
}

static void free_set(qn_token_set *set)
{
    qn_free(set->all);
    for (int i = 0; i < QN_SHORT_TEXTS; i++)
        qn_free(set->few[i]);
    qn_free(set->longer);
    qn_free(set->characters);
}

/* ---- Tries and precomputed sets ---- */

/* Sets `closes` of the texts. some: [n] scratch */
static qn_status make_string_sets(qn_grammar_vocab *v, token_text *texts, size_t n, uint16_t *characters,
                                  qn_trie_text *some)
{
    for (int form = 0; form < QN_STRING_FORMS; form++) {
        size_t n_some = 0;
        memset(characters, 0, v->n_tokens * sizeof *characters);
        for (size_t i = 0; i < n; i++) {
            uint32_t n_characters, n_bytes;
            size_t length;
            const int32_t first = texts[i].token;
            const char *text = qn_grammar_vocab_bytes(v, first, &length);
            const qn_in_string end = qn_vocab_run_string(v, first, (qn_string_form)form, &n_characters, &n_bytes);
            for (int32_t t = first; end == QN_IN_STRING_STAYS && t >= 0; t = v->same[t])
                characters[t] = (uint16_t)n_characters;
            texts[i].closes = form == QN_STRING_VALUE ? end == QN_IN_STRING_CLOSES : texts[i].closes;
            if (end != QN_IN_STRING_CLOSES)
                continue;
            qn_closers *closers = &v->closers[form];
            closers->most_characters =
                n_characters > closers->most_characters ? n_characters : closers->most_characters;
            some[n_some++] = (qn_trie_text){ text + n_bytes, (uint32_t)length - n_bytes, first };
        }
        QN_TRY(make_set(v, characters, form == QN_STRING_VALUE, &v->inside[form]));
        QN_TRY(qn_closers_make(v, some, n_some, &v->closers[form]));
    }
    return QN_OK;
}

static qn_status make_text_sets(qn_grammar_vocab *v, const token_text *texts, size_t n, uint16_t *characters)
{
    for (int kind = 0; kind < QN_TEXT_CLASSES; kind++) {
        memset(characters, 0, v->n_tokens * sizeof *characters);
        for (size_t i = 0; i < n; i++)
            if (texts[i].kind < QN_TEXT_CLASSES && qn_text_contains((qn_text_class)kind) >> texts[i].kind & 1)
                for (int32_t t = texts[i].token; t >= 0; t = v->same[t])
                    characters[t] = texts[i].n_characters;
        QN_TRY(make_set(v, characters, true, &v->texts[kind]));
    }
    return QN_OK;
}

/* some: [n] scratch */
static qn_status make_tries(qn_grammar_vocab *v, const token_text *texts, size_t n, qn_trie_text *some)
{
    for (int which = 0; which < QN_TRIES; which++) {
        size_t n_some = 0;
        for (size_t i = 0; i < n; i++) {
            if (which == QN_TRIE_CLOSING ? !texts[i].closes : texts[i].trie != which)
                continue;
            size_t length;
            const char *text = qn_grammar_vocab_bytes(v, texts[i].token, &length);
            some[n_some++] = (qn_trie_text){ text, (uint32_t)length, texts[i].token };
        }
        QN_TRY(qn_trie_make(some, n_some, &v->tries[which]));
    }
    return QN_OK;
}

static qn_status make_shapes(qn_grammar_vocab *v)
{
    uint16_t n = 0;
    for (int byte = 0; byte < 256; byte++) {
        v->kind_of[byte] = qn_text_kind((uint8_t)byte);
        v->foreign_kinds |= byte >= 0x80 ? v->kind_of[byte] : 0;
        v->inner_kinds |= byte >= 0x80 && byte < 0xc0 ? v->kind_of[byte] : 0;
    }
    for (int kind = 0; kind < QN_TEXT_KINDS; kind++) {
        v->kind_begins[kind] = n;
        for (int byte = 0; byte < 256; byte++)
            if (v->kind_of[byte] >> kind & 1)
                v->kind_bytes[n++] = (uint8_t)byte;
    }
    v->kind_begins[QN_TEXT_KINDS] = n;
    for (int i = 0; i < QN_TRIE_CLOSING; i++)
        QN_TRY(qn_shapes_make(v, &v->tries[i], &v->shapes[i]));
    return QN_OK;
}

/* ---- The vocabulary ---- */

/* Returns the mark that stands for a token in grammars; 0 if there is none. */
static int find_mark(const qn_output_params *output, size_t token)
{
    if (!output)
        return 0;
    const int32_t tokens[] = { output->call_open.token, output->call_close.token, output->think_open.token,
                               output->think_close.token };
    for (int i = 0; i < QN_MARKS_END - QN_MARK_CALL_OPEN; i++)
        if (tokens[i] >= 0 && (size_t)tokens[i] == token)
            return QN_MARK_CALL_OPEN + i;
    return 0;
}

/* Copies the bytes of the tokens that may follow, and the end tokens. */
static qn_status copy_tokens(qn_grammar_vocab *v, const qn_tokenizer *tokenizer, const qn_output_params *output)
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
            const char mark = (char)find_mark(output, t);
            if (is_end || (!mark && (qn_tokenizer_is_special(tokenizer, (int32_t)t) || length > QN_TOKEN_BYTES ||
                                     (length == 1 && qn_is_mark(*bytes)))))
                continue;
            if (mark) {
                v->mark_lengths[(uint8_t)mark - QN_MARK_CALL_OPEN] = (uint32_t)length;
                bytes = &mark;
                length = 1;
            }
            if (pass && length)
                memcpy(v->bytes + at, bytes, length);
            at += length;
        }
        v->offsets[v->n_tokens] = (uint32_t)at;
        total = at;
    }
    return QN_OK;
}

static qn_status prepare(qn_grammar_vocab *v, const qn_tokenizer *tokenizer, const qn_output_params *output)
{
    QN_TRY(qn_alloc(&v->offsets, v->n_tokens + 1, sizeof *v->offsets, "grammar vocabulary"));
    QN_TRY(qn_alloc(&v->same, v->n_tokens, sizeof *v->same, "grammar vocabulary"));
    QN_TRY(qn_alloc(&v->ends, v->n_tokens, sizeof *v->ends, "grammar vocabulary"));
    QN_TRY(qn_alloc(&v->cached, v->n_cached, sizeof *v->cached, "masks"));
    QN_TRY(qn_alloc(&v->cached_masks, v->n_cached * v->n_words, sizeof *v->cached_masks, "masks"));
    QN_TRY(copy_tokens(v, tokenizer, output));
    sorted_token *sorted = malloc((v->n_tokens + 1) * sizeof *sorted);
    token_text *texts = malloc((v->n_tokens + 1) * sizeof *texts);
    qn_trie_text *some = malloc((v->n_tokens + 1) * sizeof *some);
    uint16_t *characters = malloc((v->n_tokens + 1) * sizeof *characters);
    qn_status status = sorted && texts && some && characters ? QN_OK : no_memory();
    size_t n = 0;
    if (status == QN_OK) {
        n = find_order(v, sorted, texts);
        classify(v, texts, n);
        status = make_string_sets(v, texts, n, characters, some);
    }
    if (status == QN_OK)
        status = make_tries(v, texts, n, some);
    if (status == QN_OK)
        status = make_shapes(v);
    if (status == QN_OK)
        status = make_text_sets(v, texts, n, characters);
    free(sorted);
    free(texts);
    free(some);
    free(characters);
    return status;
}

qn_status qn_grammar_vocab_create(const qn_tokenizer *tokenizer, const qn_output_params *output, size_t n_cached,
                                  qn_grammar_vocab **out)
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
    const qn_status status = prepare(v, tokenizer, output);
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
    for (int i = 0; i < QN_TRIES; i++)
        qn_trie_free(&v->tries[i]);
    for (int i = 0; i < QN_TRIE_CLOSING; i++)
        qn_shapes_free(&v->shapes[i]);
    for (int i = 0; i < QN_STRING_FORMS; i++)
        qn_closers_free(&v->closers[i]);
    for (int i = 0; i < QN_STRING_FORMS; i++)
        free_set(&v->inside[i]);
    for (int i = 0; i < QN_TEXT_CLASSES; i++)
        free_set(&v->texts[i]);
    qn_free(v->cached);
    qn_free(v->cached_masks);
    pthread_mutex_destroy(&v->lock);
    free(v);
}
