/* Loading a vocabulary, and look-up of tokens. */
#define XXH_INLINE_ALL
#include "text/vocab.h"

#include "base/keyed_hash.h"
#include "base/memory.h"
#include "base/strings.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* Whether a byte is encoded as itself in the alphabet of byte-level BPE (GPT-2's bytes_to_unicode): bytes that are
 * printable in Latin-1 are, the others as U+0100 and following, in order. */
static bool is_printable(unsigned byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

enum { ALPHABET_END = 0x100 + 0x21 + 0x22 + 1 }; /* 00..20, 7f..a0 and ad are not printable */

static void make_byte_to_codepoint(uint16_t *byte_to_codepoint)
{
    uint16_t next = 0x100;
    for (unsigned b = 0; b < 256; b++)
        byte_to_codepoint[b] = is_printable(b) ? (uint16_t)b : next++;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Returns the byte of a text <0x00> to <0xFF>, or -1. */
static int byte_of(qn_string text)
{
    if (text.length != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>')
        return -1;
    const int high = hex_digit(text.data[3]), low = hex_digit(text.data[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* Decodes a token's text to bytes; false if a character is not in the alphabet. */
static bool decode_text(const int16_t *codepoint_to_byte, qn_string text, char *out, size_t *n_out)
{
    size_t n = 0, bytes;
    for (size_t i = 0; i < text.length; i += bytes) {
        uint32_t code;
        if (qn_utf8_next(text.data + i, text.length - i, &bytes, &code) != QN_UTF8_COMPLETE || code >= ALPHABET_END ||
            codepoint_to_byte[code] < 0)
            return false;
        out[n++] = (char)(unsigned char)codepoint_to_byte[code];
    }
    *n_out = n;
    return true;
}

/* Decodes a token's text, as SentencePiece spells it, to bytes; returns their number. */
static size_t decode_sentencepiece(uint8_t token_type, qn_string text, char *out)
{
    static const char space[3] = "\xe2\x96\x81"; /* U+2581 */
    const int byte = token_type == QN_TOKEN_BYTE ? byte_of(text) : -1;
    size_t n = 0;
    if (byte >= 0) {
        out[0] = (char)byte;
        return 1;
    }
    for (size_t i = 0; i < text.length; n++) {
        const bool is_space = text.length - i >= sizeof space && !memcmp(text.data + i, space, sizeof space);
        out[n] = is_space ? ' ' : text.data[i];
        i += is_space ? sizeof space : 1;
    }
    return n;
}

static bool is_stored_verbatim(uint8_t token_type)
{
    return token_type == QN_TOKEN_CONTROL || token_type == QN_TOKEN_USER_DEFINED || token_type == QN_TOKEN_UNKNOWN;
}

static qn_status load_token_types(qn_vocab *vocab, const qn_gguf *file)
{
    static const char key[] = "tokenizer.ggml.token_type";
    QN_TRY(qn_alloc(&vocab->token_types, vocab->n_tokens, 1, "token types"));
    memset(vocab->token_types, QN_TOKEN_NORMAL, vocab->n_tokens);
    const qn_gguf_kv *kv = qn_gguf_find(file, key);
    if (!kv)
        return QN_OK;
    if (kv->type != QN_GGUF_ARRAY || kv->count != vocab->n_tokens)
        return qn_fail(QN_ERR_FORMAT, "%s: '%s' must be an array of %zu types, one for each token, found %llu",
                       qn_gguf_path(file), key, vocab->n_tokens, (unsigned long long)kv->count);
    for (size_t i = 0; i < vocab->n_tokens; i++) {
        int32_t token_type;
        QN_TRY(qn_gguf_array_i32(file, kv, i, &token_type));
        if (token_type < 0 || token_type > QN_TOKEN_BYTE)
            return qn_fail(QN_ERR_FORMAT, "%s: '%s' gives token %zu the type %d, expected 0 to %d", qn_gguf_path(file),
                           key, i, token_type, QN_TOKEN_BYTE);
        vocab->token_types[i] = (uint8_t)token_type;
    }
    return QN_OK;
}

static qn_status copy_tokens(qn_vocab *vocab, const qn_gguf *file, const qn_string *tokens)
{
    size_t total = 0;
    for (size_t i = 0; i < vocab->n_tokens; i++)
        if (!qn_add_size(total, tokens[i].length, &total) || total >= UINT32_MAX)
            return qn_fail(QN_ERR_FORMAT, "%s: the texts of 'tokenizer.ggml.tokens' take more than 4 GiB",
                           qn_gguf_path(file));
    QN_TRY(qn_alloc(&vocab->texts, total, 1, "token texts"));
    QN_TRY(qn_alloc(&vocab->pieces, total, 1, "token bytes"));
    QN_TRY(qn_alloc(&vocab->text_offsets, vocab->n_tokens + 1, sizeof *vocab->text_offsets, "token texts"));
    QN_TRY(qn_alloc(&vocab->piece_offsets, vocab->n_tokens + 1, sizeof *vocab->piece_offsets, "token bytes"));

    int16_t codepoint_to_byte[ALPHABET_END];
    memset(codepoint_to_byte, -1, sizeof codepoint_to_byte);
    for (int16_t b = 0; b < 256; b++)
        codepoint_to_byte[vocab->byte_to_codepoint[b]] = b;
    uint32_t text_end = 0, piece_end = 0;
    for (size_t i = 0; i < vocab->n_tokens; i++) {
        size_t n = tokens[i].length;
        memcpy(vocab->texts + text_end, tokens[i].data, n);
        text_end += (uint32_t)n;
        vocab->text_offsets[i + 1] = text_end;
        /* Special tokens are stored verbatim, and so are manually added tokens with characters outside the alphabet. */
        if (!is_stored_verbatim(vocab->token_types[i]) && vocab->spelling == QN_SPELLING_SENTENCEPIECE)
            n = decode_sentencepiece(vocab->token_types[i], tokens[i], vocab->pieces + piece_end);
        else if (is_stored_verbatim(vocab->token_types[i]) ||
                 !decode_text(codepoint_to_byte, tokens[i], vocab->pieces + piece_end, &n))
            memcpy(vocab->pieces + piece_end, tokens[i].data, n);
        piece_end += (uint32_t)n;
        vocab->piece_offsets[i + 1] = piece_end;
    }
    return QN_OK;
}

/* Returns the slot of a text, or the empty slot where it would be inserted. */
static size_t find_slot(const qn_vocab *vocab, const char *text, size_t length)
{
    size_t slot = (size_t)qn_keyed_hash(text, length) & vocab->slot_mask;
    for (; vocab->slots[slot]; slot = (slot + 1) & vocab->slot_mask) {
        const qn_string other = qn_vocab_text(vocab, vocab->slots[slot] - 1);
        if (other.length == length && !memcmp(other.data, text, length))
            break;
    }
    return slot;
}

static qn_status index_texts(qn_vocab *vocab)
{
    size_t n_slots = 16;
    while (n_slots < vocab->n_tokens + vocab->n_tokens / 2)
        n_slots *= 2;
    QN_TRY(qn_alloc(&vocab->slots, n_slots, sizeof *vocab->slots, "index of tokens"));
    vocab->slot_mask = n_slots - 1;
    for (uint32_t i = 0; i < vocab->n_tokens; i++) {
        const qn_string text = qn_vocab_text(vocab, i);
        if (!text.length)
            continue; /* an unused id: several may have the same text, and look-up does not return them */
        const size_t slot = find_slot(vocab, text.data, text.length);
        if (!vocab->slots[slot]) {
            vocab->slots[slot] = i + 1;
        } else if (!vocab->n_repeated++) {
            vocab->repeated[0] = vocab->slots[slot] - 1;
            vocab->repeated[1] = i;
        }
    }
    return QN_OK;
}

/* Returns the token of a byte in a vocabulary of SentencePiece: <0xHH>, or else the byte itself, as in llama.cpp. */
static int32_t find_byte(const qn_vocab *vocab, unsigned byte)
{
    static const char digits[] = "0123456789ABCDEF";
    const char text[] = { '<', '0', 'x', digits[byte / 16], digits[byte % 16], '>' }, itself = (char)byte;
    int32_t token = qn_vocab_find(vocab, text, sizeof text);
    if (token < 0)
        token = qn_vocab_find(vocab, &itself, 1);
    return token >= 0 && !qn_vocab_is_control(vocab, token) ? token : -1;
}

static void index_bytes(qn_vocab *vocab)
{
    for (unsigned b = 0; b < 256; b++) {
        char text[4];
        vocab->byte_to_token[b] = vocab->spelling == QN_SPELLING_SENTENCEPIECE
                                      ? find_byte(vocab, b)
                                      : qn_vocab_find(vocab, text, qn_utf8_encode(vocab->byte_to_codepoint[b], text));
    }
}

static int compare_texts(const void *left, const void *right, void *user)
{
    const qn_vocab *vocab = user;
    const qn_string a = qn_vocab_text(vocab, *(const uint32_t *)left),
                    b = qn_vocab_text(vocab, *(const uint32_t *)right);
    const int order = memcmp(a.data, b.data, a.length < b.length ? a.length : b.length);
    return order ? order : (a.length > b.length) - (a.length < b.length);
}

static int compare_specials(const void *left, const void *right, void *user)
{
    const uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    const int order = compare_texts(left, right, user);
    return order ? order : (a > b) - (a < b);
}

/* Keeps the first of special tokens with the same text: qn_vocab_special_at needs distinct texts. */
static void drop_repeated_specials(qn_vocab *vocab)
{
    size_t n = 0;
    for (size_t i = 0; i < vocab->n_special_tokens; i++)
        if (!n || compare_texts(&vocab->special_tokens[n - 1], &vocab->special_tokens[i], vocab) != 0)
            vocab->special_tokens[n++] = vocab->special_tokens[i];
    vocab->n_special_tokens = n;
}

/* Whether texts are searched for a token. The length limit bounds the time for each byte of text. */
static bool is_found(const qn_vocab *vocab, uint32_t token)
{
    const size_t length = qn_vocab_text(vocab, token).length;
    return is_stored_verbatim(vocab->token_types[token]) && length && length <= QN_SPECIAL_BYTES;
}

static qn_status index_specials(qn_vocab *vocab)
{
    for (uint32_t i = 0; i < vocab->n_tokens; i++)
        vocab->n_special_tokens += is_found(vocab, i);
    QN_TRY(qn_alloc(&vocab->special_tokens, vocab->n_special_tokens, sizeof *vocab->special_tokens, "special tokens"));
    size_t n = 0;
    for (uint32_t i = 0; i < vocab->n_tokens; i++) {
        const qn_string text = qn_vocab_text(vocab, i);
        if (is_found(vocab, i)) {
            vocab->special_tokens[n++] = i;
            vocab->special_first_bytes[(unsigned char)text.data[0]] = true;
        }
    }
    qn_sort(vocab->special_tokens, n, sizeof *vocab->special_tokens, compare_specials, vocab);
    drop_repeated_specials(vocab);
    return QN_OK;
}

qn_status qn_vocab_load(qn_vocab *vocab, const qn_gguf *file, qn_spelling spelling)
{
    static const char key[] = "tokenizer.ggml.tokens";
    const qn_gguf_kv *kv = qn_gguf_find(file, key);
    if (!kv)
        return qn_fail(QN_ERR_FORMAT, "%s: '%s' is missing", qn_gguf_path(file), key);
    if (kv->type != QN_GGUF_ARRAY || kv->element_type != QN_GGUF_STRING || !kv->count || kv->count > INT32_MAX)
        return qn_fail(QN_ERR_FORMAT, "%s: '%s' must be an array of 1 to 2^31-1 strings", qn_gguf_path(file), key);
    vocab->n_tokens = (size_t)kv->count;
    vocab->spelling = spelling;
    make_byte_to_codepoint(vocab->byte_to_codepoint);
    QN_TRY(load_token_types(vocab, file));
    qn_string *tokens;
    QN_TRY(qn_gguf_array_strings(file, kv, &tokens));
    const qn_status status = copy_tokens(vocab, file, tokens);
    free(tokens);
    QN_TRY(status);
    QN_TRY(index_texts(vocab));
    index_bytes(vocab);
    return index_specials(vocab);
}

void qn_vocab_free(qn_vocab *vocab)
{
    qn_free(vocab->texts);
    qn_free(vocab->pieces);
    qn_free(vocab->text_offsets);
    qn_free(vocab->piece_offsets);
    qn_free(vocab->token_types);
    qn_free(vocab->slots);
    qn_free(vocab->special_tokens);
    *vocab = (qn_vocab){ 0 };
}

int32_t qn_vocab_find(const qn_vocab *vocab, const char *text, size_t length)
{
    return length ? (int32_t)vocab->slots[find_slot(vocab, text, length)] - 1 : -1;
}

int32_t qn_vocab_find_bytes(const qn_vocab *vocab, const char *bytes, size_t length)
{
    /* Encoding the bytes costs less than a second hash table. Longer pieces do not fit in the buffer and are merged as
     * usual. */
    char text[512];
    size_t n = 0;
    if (length > sizeof text / 2)
        return -1;
    for (size_t i = 0; i < length; i++)
        n += qn_utf8_encode(vocab->byte_to_codepoint[(unsigned char)bytes[i]], text + n);
    const int32_t token = qn_vocab_find(vocab, text, n);
    return token >= 0 && vocab->token_types[token] == QN_TOKEN_NORMAL ? token : -1;
}

static unsigned char byte_at(const qn_vocab *vocab, size_t special, size_t depth)
{
    return (unsigned char)vocab->texts[vocab->text_offsets[vocab->special_tokens[special]] + depth];
}

/* Returns the first special token of [from, to) whose byte at `depth` is at least `byte` (find_from), or above it
 * (find_to). The search starts where the bound mostly stays, with growing steps, so that it takes few steps where a
 * byte of the text excludes few tokens. */
static size_t find_from(const qn_vocab *vocab, size_t from, size_t to, size_t depth, unsigned char byte)
{
    for (size_t step = 1; from < to; step *= 2) {
        const size_t probe = step < to - from ? from + step - 1 : to - 1;
        if (byte_at(vocab, probe, depth) >= byte) {
            to = probe;
            break;
        }
        from = probe + 1;
    }
    while (from < to) {
        const size_t middle = from + (to - from) / 2;
        if (byte_at(vocab, middle, depth) < byte)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

static size_t find_to(const qn_vocab *vocab, size_t from, size_t to, size_t depth, unsigned char byte)
{
    for (size_t step = 1; from < to; step *= 2) {
        const size_t probe = step < to - from ? to - step : from;
        if (byte_at(vocab, probe, depth) <= byte) {
            from = probe + 1;
            break;
        }
        to = probe;
    }
    while (from < to) {
        const size_t middle = from + (to - from) / 2;
        if (byte_at(vocab, middle, depth) <= byte)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

int32_t qn_vocab_special_at(const qn_vocab *vocab, const char *text, size_t length, bool control, const bool *without,
                            size_t *match)
{
    int32_t best = -1;
    if (!length || !vocab->special_first_bytes[(unsigned char)text[0]])
        return best;
    /* Tokens low to high - 1 share their first `depth` bytes with the text. If one has exactly this length, it is
     * the first of them. */
    size_t low = 0, high = vocab->n_special_tokens;
    for (size_t depth = 0; low < high; depth++) {
        const uint32_t token = vocab->special_tokens[low];
        if (qn_vocab_text(vocab, token).length == depth) {
            if ((control || vocab->token_types[token] == QN_TOKEN_USER_DEFINED) && !(without && without[token])) {
                best = (int32_t)token;
                *match = depth;
            }
            low++;
        }
        if (depth == length)
            break;
        const unsigned char want = (unsigned char)text[depth];
        low = find_from(vocab, low, high, depth, want);
        high = find_to(vocab, low, high, depth, want);
    }
    return best;
}
