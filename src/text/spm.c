/* Merging by score, with a linked list of symbols and a heap of candidate pairs.
 *
 * The rules are those of SentencePiece (src/bpe_model.cc, src/normalizer.cc; the identity normaliser) and, where
 * special tokens divide a text, of llama.cpp (llama-vocab.cpp): a space is put before the text and after special
 * tokens. Bytes that are no UTF-8 are kept as byte tokens, where SentencePiece replaces them by U+FFFD. */
#include "text/spm.h"

#include "base/memory.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

static const char space[] = "\xe2\x96\x81"; /* U+2581 */

enum { SPACE_BYTES = sizeof space - 1, MAX_PART = 256 << 10, ADJACENT_BITS = 1 << 20 };

/* A piece of text: a character, or several merged ones. */
struct qn_spm_symbol {
    uint32_t at;        /* offset in the text */
    uint32_t length;    /* 0: merged into the symbol before it */
    int32_t prev, next; /* -1 at the ends */
    int32_t half;       /* the symbol that was merged into this one last; of a merged symbol, the one before that; -1 */
    int32_t own_half;   /* of a merged symbol: its own `half` when it was merged */
};

/* A candidate. It is stale if the lengths of its symbols do not add up to `length` any more. */
struct qn_spm_pair {
    float score;
    int32_t left, right;
    uint32_t length;
};

/* ---- Loading ---- */

static qn_status load_scores(qn_spm *spm, const qn_vocab *vocab, const qn_gguf *file)
{
    static const char key[] = "tokenizer.ggml.scores";
    const qn_gguf_kv *kv = qn_gguf_find(file, key);
    QN_TRY(qn_alloc(&spm->scores, vocab->n_tokens, sizeof *spm->scores, "token scores"));
    if (!kv)
        return QN_OK;
    if (kv->type != QN_GGUF_ARRAY || kv->count != vocab->n_tokens)
        return qn_fail(QN_ERR_FORMAT, "%s: '%s' must be an array of %zu scores, one for each token, found %llu",
                       qn_gguf_path(file), key, vocab->n_tokens, (unsigned long long)kv->count);
    for (size_t i = 0; i < vocab->n_tokens; i++)
        QN_TRY(qn_gguf_array_f32(file, kv, i, &spm->scores[i]));
    return QN_OK;
}

static qn_status load_unknown(qn_spm *spm, const qn_vocab *vocab, const qn_gguf *file)
{
    static const char key[] = "tokenizer.ggml.unknown_token_id";
    uint32_t id = UINT32_MAX;
    spm->unknown = -1;
    for (size_t i = 0; i < vocab->n_tokens && spm->unknown < 0; i++)
        if (vocab->token_types[i] == QN_TOKEN_UNKNOWN)
            spm->unknown = (int32_t)i;
    if (!qn_gguf_find(file, key))
        return QN_OK;
    QN_TRY(qn_gguf_get_u32(file, key, true, &id));
    if (id >= vocab->n_tokens)
        return qn_fail(QN_ERR_FORMAT, "%s: '%s' is %u, the vocabulary has %zu tokens", qn_gguf_path(file), key, id,
                       vocab->n_tokens);
    spm->unknown = (int32_t)id;
    return QN_OK;
}

/* Whether text may be merged to a token. SentencePiece keeps control, unknown and byte tokens apart from the others. */
static bool is_mergeable(const qn_vocab *vocab, int32_t token)
{
    return !qn_vocab_is_control(vocab, token) && vocab->token_types[token] != QN_TOKEN_BYTE;
}

static size_t adjacent_bit(uint32_t left, uint32_t right)
{
    const uint64_t mixed = (left * 0x9e3779b97f4a7c15u) ^ (right * 0xc2b2ae3d27d4eb4fu);
    return (size_t)((mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9u >> 44) % ADJACENT_BITS;
}

/* Returns the bytes of the first character. Bytes that are no character count as characters of their own, beyond
 * Unicode. */
static size_t next_character(const char *text, size_t length, uint32_t *code)
{
    size_t bytes;
    if (qn_utf8_next(text, length, &bytes, code) == QN_UTF8_COMPLETE)
        return bytes;
    *code = 0x110000u + (unsigned char)*text;
    return 1;
}

/* Fills the set of pairs of characters that are neighbours in a token. No merge crosses two that are neighbours in
 * none: text is cut there, which keeps the pieces short. Characters that hash alike only join pieces. */
static qn_status index_adjacent(qn_spm *spm, const qn_vocab *vocab)
{
    QN_TRY(qn_alloc(&spm->adjacent, ADJACENT_BITS / 64, sizeof *spm->adjacent, "pairs of characters"));
    for (uint32_t i = 0; i < vocab->n_tokens; i++) {
        const qn_string text = qn_vocab_text(vocab, i);
        uint32_t left = 0, right;
        if (!is_mergeable(vocab, (int32_t)i) || text.length > QN_SPM_MAX_PIECE)
            continue;
        spm->longest = text.length > spm->longest ? text.length : spm->longest;
        for (size_t at = 0; at < text.length; left = right) {
            const bool first = at == 0;
            at += next_character(text.data + at, text.length - at, &right);
            if (!first)
                spm->adjacent[adjacent_bit(left, right) / 64] |= (uint64_t)1 << adjacent_bit(left, right) % 64;
        }
    }
    return QN_OK;
}

qn_status qn_spm_load(qn_spm *spm, const qn_vocab *vocab, const qn_gguf *file)
{
    spm->space_prefix = true;
    QN_TRY(load_scores(spm, vocab, file));
    QN_TRY(load_unknown(spm, vocab, file));
    QN_TRY(qn_gguf_get_bool(file, "tokenizer.ggml.add_space_prefix", false, &spm->space_prefix));
    QN_TRY(qn_gguf_get_bool(file, "tokenizer.ggml.remove_extra_whitespaces", false, &spm->remove_extra_spaces));
    return index_adjacent(spm, vocab);
}

void qn_spm_free(qn_spm *spm)
{
    qn_free(spm->scores);
    qn_free(spm->adjacent);
    *spm = (qn_spm){ 0 };
}

void qn_spm_scratch_free(qn_spm_scratch *scratch)
{
    free(scratch->text);
    free(scratch->symbols);
    free(scratch->heap);
    *scratch = (qn_spm_scratch){ 0 };
}

/* ---- Normalisation ---- */

/* Writes the text as tokens spell it. */
static qn_status escape_spaces(const qn_spm *spm, qn_spm_scratch *scratch, const qn_spm_text *t, size_t *length)
{
    const char *text = t->text;
    size_t n = t->length, need, n_out = 0;
    for (; spm->remove_extra_spaces && t->begins && n && *text == ' '; n--)
        text++;
    *length = 0;
    if (!n)
        return QN_OK;
    if (!qn_mul_size(n, SPACE_BYTES, &need) || !qn_add_size(need, SPACE_BYTES, &need))
        return qn_fail(QN_ERR_MEMORY, "tokenising: a text of %zu bytes does not fit in memory", n);
    QN_TRY(qn_realloc_array(&scratch->text, &scratch->text_capacity, need, 1, "tokenising"));
    if (spm->space_prefix && t->prefixed) {
        memcpy(scratch->text, space, SPACE_BYTES);
        n_out = SPACE_BYTES;
    }
    for (size_t i = 0; i < n; i++) {
        if (text[i] != ' ') {
            scratch->text[n_out++] = text[i];
        } else if (!(spm->remove_extra_spaces && i && text[i - 1] == ' ')) {
            memcpy(scratch->text + n_out, space, SPACE_BYTES);
            n_out += SPACE_BYTES;
        }
    }
    while (spm->remove_extra_spaces && t->ends && n_out >= SPACE_BYTES &&
           !memcmp(scratch->text + n_out - SPACE_BYTES, space, SPACE_BYTES))
        n_out -= SPACE_BYTES;
    *length = n_out;
    return QN_OK;
}

/* ---- Merging ---- */

struct spm_encoder {
    const qn_spm *spm;
    const qn_vocab *vocab;
    qn_spm_scratch *scratch;
    const bool *without;
    qn_status (*emit)(void *user, int32_t token);
    void *user;
    size_t n_heap;
    bool after_unknown; /* the last token was the unknown one: a run of unknown characters is one token */
};

static bool has_priority(const struct qn_spm_pair *a, const struct qn_spm_pair *b)
{
    return a->score != b->score ? a->score > b->score : a->left < b->left;
}

static void push(struct spm_encoder *e, struct qn_spm_pair pair)
{
    struct qn_spm_pair *heap = e->scratch->heap;
    size_t at = e->n_heap++;
    for (; at && has_priority(&pair, &heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = pair;
}

static struct qn_spm_pair pop(struct spm_encoder *e)
{
    struct qn_spm_pair *heap = e->scratch->heap;
    const struct qn_spm_pair top = heap[0], moving = heap[--e->n_heap];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < e->n_heap; at = child) {
        if (child + 1 < e->n_heap && has_priority(&heap[child + 1], &heap[child]))
            child++;
        if (!has_priority(&heap[child], &moving))
            break;
        heap[at] = heap[child];
    }
    heap[at] = moving;
    return top;
}

/* Returns the token that a piece of text may become, or -1. */
static int32_t find_token(const struct spm_encoder *e, const char *text, size_t length)
{
    const int32_t token = length <= e->spm->longest ? qn_vocab_find(e->vocab, text, length) : -1;
    return token >= 0 && is_mergeable(e->vocab, token) && !(e->without && e->without[token]) ? token : -1;
}

static void push_pair(struct spm_encoder *e, const char *text, int32_t left, int32_t right)
{
    if (left < 0 || right < 0)
        return;
    const struct qn_spm_symbol *l = &e->scratch->symbols[left], *r = &e->scratch->symbols[right];
    const uint32_t length = l->length + r->length;
    const int32_t token = find_token(e, text + l->at, length);
    if (token >= 0)
        push(e, (struct qn_spm_pair){ e->spm->scores[token], left, right, length });
}

static qn_status emit_unknown(struct spm_encoder *e, const char *text, size_t length)
{
    bool has_bytes = true;
    for (size_t i = 0; i < length; i++)
        has_bytes = has_bytes && e->vocab->byte_to_token[(unsigned char)text[i]] >= 0;
    if (!has_bytes) {
        const bool again = e->after_unknown;
        e->after_unknown = true;
        return again || e->spm->unknown < 0 ? QN_OK : e->emit(e->user, e->spm->unknown);
    }
    e->after_unknown = false;
    for (size_t i = 0; i < length; i++)
        QN_TRY(e->emit(e->user, e->vocab->byte_to_token[(unsigned char)text[i]]));
    return QN_OK;
}

/* Emits the symbol with the text from symbol `at` on. An unused token is divided again into the symbols that it was
 * merged from, at last into unknown characters; the depth is at most the number of its characters.
 *
 *   half   the symbol that was merged into it last, or -1 */
static qn_status emit_symbol(struct spm_encoder *e, const char *text, int32_t at, uint32_t length, int32_t half)
{
    const struct qn_spm_symbol *symbols = e->scratch->symbols;
    const int32_t token = find_token(e, text + symbols[at].at, length);
    if (token >= 0 && e->vocab->token_types[token] != QN_TOKEN_UNUSED) {
        e->after_unknown = false;
        return e->emit(e->user, token);
    }
    if (half < 0)
        return emit_unknown(e, text + symbols[at].at, length);
    const uint32_t left = symbols[half].at - symbols[at].at;
    QN_TRY(emit_symbol(e, text, at, left, symbols[half].half));
    return emit_symbol(e, text, half, length - left, symbols[half].own_half);
}

/* Merges a piece of text that no merge leaves, and emits its tokens. */
static qn_status merge_piece(struct spm_encoder *e, const char *text, size_t length)
{
    qn_spm_scratch *scratch = e->scratch;
    int32_t n = 0;
    QN_TRY(qn_realloc_array(&scratch->symbols, &scratch->symbols_capacity, length, sizeof *scratch->symbols,
                            "tokenising"));
    /* A merge takes one pair from the heap and adds at most two, and there are fewer than n merges. */
    QN_TRY(qn_realloc_array(&scratch->heap, &scratch->heap_capacity, 3 * length, sizeof *scratch->heap, "tokenising"));
    struct qn_spm_symbol *symbols = scratch->symbols;
    for (size_t at = 0; at < length; n++) {
        uint32_t code;
        const size_t bytes = next_character(text + at, length - at, &code);
        symbols[n] = (struct qn_spm_symbol){ (uint32_t)at, (uint32_t)bytes, n - 1, n + 1, -1, -1 };
        at += bytes;
    }
    symbols[n - 1].next = -1;
    e->n_heap = 0;
    for (int32_t i = 1; i < n; i++)
        push_pair(e, text, i - 1, i);
    while (e->n_heap) {
        const struct qn_spm_pair pair = pop(e);
        struct qn_spm_symbol *left = &symbols[pair.left], *right = &symbols[pair.right];
        if (!left->length || !right->length || left->length + right->length != pair.length)
            continue;
        left->length = pair.length;
        right->length = 0;
        right->own_half = right->half;
        right->half = left->half;
        left->half = pair.right;
        left->next = right->next;
        if (left->next >= 0)
            symbols[left->next].prev = pair.left;
        push_pair(e, text, left->prev, pair.left);
        push_pair(e, text, pair.left, left->next);
    }
    for (int32_t i = 0; i >= 0; i = symbols[i].next)
        QN_TRY(emit_symbol(e, text, i, symbols[i].length, symbols[i].half));
    return QN_OK;
}

/* Returns the length of the first piece: up to characters that are neighbours in no token. */
static size_t find_piece(const qn_spm *spm, const char *text, size_t length)
{
    uint32_t left, right;
    size_t at = next_character(text, length, &left);
    for (size_t bytes; at < length && at < MAX_PART; at += bytes, left = right) {
        bytes = next_character(text + at, length - at, &right);
        if (!(spm->adjacent[adjacent_bit(left, right) / 64] >> adjacent_bit(left, right) % 64 & 1))
            break;
    }
    return at;
}

qn_status qn_spm_encode(const qn_spm *spm, const qn_vocab *vocab, qn_spm_scratch *scratch, const qn_spm_text *text,
                        qn_status (*emit)(void *user, int32_t token), void *user)
{
    struct spm_encoder e = {
        .spm = spm, .vocab = vocab, .scratch = scratch, .without = text->without, .emit = emit, .user = user
    };
    size_t length;
    QN_TRY(escape_spaces(spm, scratch, text, &length));
    for (size_t at = 0, n; at < length; at += n) {
        n = find_piece(spm, scratch->text + at, length - at);
        QN_TRY(merge_piece(&e, scratch->text + at, n));
    }
    return QN_OK;
}
