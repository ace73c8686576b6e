/* The tokeniser: loading, encoding, decoding. */
#include "text/tokenizer.h"

#include "base/append.h"
#include "base/memory.h"
#include "text/bpe.h"
#include "text/normalize.h"
#include "text/pretokenize.h"
#include "text/spm.h"
#include "text/vocab.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LISTED = 64, MAX_EOG = MAX_LISTED + 64 };

/* Flags of a token: it absorbs the white space before it, after it. */
enum { LSTRIP = 1, RSTRIP = 2 };

struct qn_tokenizer {
    qn_vocab vocab;
    bool is_spm;
    qn_spm spm;       /* if is_spm */
    qn_merges merges; /* otherwise, as pre */
    qn_pretokenizer *pre;
    int32_t bos, eos;
    bool add_bos, add_eos, nfc, ignore_merges;
    uint8_t *strips;   /* [n_tokens] LSTRIP, RSTRIP; NULL: no token strips */
    size_t most_bytes; /* of a text that become one token; 0: no bound */
    int32_t eog_tokens[MAX_EOG];
    size_t n_eog;
    char name[32];
    char note[160];
};

/* ---- Loading ---- */

static qn_status load_model_name(const qn_gguf *file, bool *is_spm)
{
    static const char key[] = "tokenizer.ggml.model";
    qn_string model = { NULL, 0 };
    QN_TRY(qn_gguf_get_string(file, key, false, &model));
    if (!model.data || qn_string_equals(model, "no_vocab"))
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: the file has no tokeniser ('%s' is %s)", qn_gguf_path(file), key,
                       model.data ? "\"no_vocab\"" : "missing");
    *is_spm = qn_string_equals(model, "llama");
    if (!*is_spm && !qn_string_equals(model, "gpt2"))
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "%s: tokeniser model '%.*s' is not supported, expected gpt2 (byte-level BPE) or llama "
                       "(SentencePiece)",
                       qn_gguf_path(file), (int)(model.length < 80 ? model.length : 80), model.data);
    return QN_OK;
}

/* Whether the value is -1, of any width, signed or unsigned: converters write it for no token. */
static bool means_none(const qn_gguf_kv *kv)
{
    uint64_t value = UINT64_MAX;
    switch (kv->type) {
    case QN_GGUF_I8:
    case QN_GGUF_I16:
    case QN_GGUF_I32:
    case QN_GGUF_I64: memcpy(&value, kv->data, kv->bytes); return value == UINT64_MAX;
    case QN_GGUF_U32:
    case QN_GGUF_U64:
        value = 0;
        memcpy(&value, kv->data, kv->bytes);
        return value == UINT32_MAX || value == UINT64_MAX;
    default: return false;
    }
}

/* Reads the token id of a key: `fallback` if the key is missing and the vocabulary has that token, -1 if it has none or
 * the key's value means no token. */
static qn_status get_token(const qn_tokenizer *tok, const qn_gguf *file, const char *key, int32_t fallback,
                           int32_t *out)
{
    const qn_gguf_kv *kv = qn_gguf_find(file, key);
    *out = !kv && fallback >= 0 && (size_t)fallback < tok->vocab.n_tokens ? fallback : -1;
    if (!kv || means_none(kv))
        return QN_OK;
    uint32_t id = 0;
    QN_TRY(qn_gguf_get_u32(file, key, true, &id));
    if (id >= tok->vocab.n_tokens)
        return qn_fail(QN_ERR_FORMAT, "%s: '%s' is %u, the vocabulary has %zu tokens", qn_gguf_path(file), key, id,
                       tok->vocab.n_tokens);
    *out = (int32_t)id;
    return QN_OK;
}

qn_status qn_tokenizer_read_id(const qn_tokenizer *tok, const qn_gguf *file, const char *key, int32_t *out)
{
    return get_token(tok, file, key, -1, out);
}

static void add_eog(qn_tokenizer *tok, int32_t token)
{
    if (token >= 0 && !qn_tokenizer_is_eog(tok, token) && tok->n_eog < MAX_EOG)
        tok->eog_tokens[tok->n_eog++] = token;
}

/* Calls `add` for each token of an array of ids, if the file has the key. */
static qn_status read_tokens(qn_tokenizer *tok, const qn_gguf *file, const char *key, size_t most,
                             qn_status (*add)(qn_tokenizer *tok, int32_t token, uint8_t flag), uint8_t flag)
{
    const qn_gguf_kv *kv = qn_gguf_find(file, key);
    if (!kv)
        return QN_OK;
    if (kv->type != QN_GGUF_ARRAY || kv->count > most)
        return qn_fail(QN_ERR_FORMAT, "%s: '%s' is not an array of at most %zu ids", qn_gguf_path(file), key, most);
    for (uint64_t i = 0; i < kv->count; i++) {
        int32_t token;
        QN_TRY(qn_gguf_array_i32(file, kv, i, &token));
        if (token < 0 || (size_t)token >= tok->vocab.n_tokens)
            return qn_fail(QN_ERR_FORMAT, "%s: '%s' has %d, the vocabulary has %zu tokens", qn_gguf_path(file), key,
                           token, tok->vocab.n_tokens);
        QN_TRY(add(tok, token, flag));
    }
    return QN_OK;
}

static qn_status add_listed_eog(qn_tokenizer *tok, int32_t token, uint8_t flag)
{
    (void)flag;
    add_eog(tok, token);
    return QN_OK;
}

static qn_status add_strip(qn_tokenizer *tok, int32_t token, uint8_t flag)
{
    if (!tok->strips)
        QN_TRY(qn_alloc(&tok->strips, tok->vocab.n_tokens, 1, "flags of tokens"));
    tok->strips[token] |= flag;
    return QN_OK;
}

/* Adds end tokens by name. A file has one eos id, but a model may end its turn, its call or its text with other
 * tokens, and a code model ends a file or a repository. The names are those of llama.cpp (llama-vocab.cpp). */
static void add_named(qn_tokenizer *tok)
{
    static const char *const names[] = {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234>",
        "[e~[",
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<PAD>",
        "[PAD]",
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
        "<|file_sep|>",
    };
    /* In a vocabulary that has both tokens of `with`, the name means something else: the end of a channel, a tag. */
    static const struct {
        const char *name, *with[2];
    } exceptions[] = { { "<|end|>", { "<|return|>", "<|call|>" } },
                       { "<|end|>", { "<|return|>", "<|calls|>" } },
                       { "<|end|>", { "<|calls|>", "<|flush|>" } },
                       { "<|end|>", { "<|call|>", "<|flush|>" } },
                       { "</s>", { "<|tool_response>", "<|tool_response>" } },
                       { "</s>", { "<|plamo:eos|>", "<|plamo:eos|>" } } };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        bool excepted = false;
        for (size_t e = 0; e < sizeof exceptions / sizeof *exceptions; e++)
            excepted |= strcmp(names[i], exceptions[e].name) == 0 &&
                        qn_tokenizer_find(tok, exceptions[e].with[0]) >= 0 &&
                        qn_tokenizer_find(tok, exceptions[e].with[1]) >= 0;
        if (!excepted)
            add_eog(tok, qn_tokenizer_find(tok, names[i]));
    }
}

static qn_status load_eog(qn_tokenizer *tok, const qn_gguf *file)
{
    static const char *const keys[] = { "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id",
                                        "tokenizer.ggml.fim_pad_token_id", "tokenizer.ggml.fim_rep_token_id",
                                        "tokenizer.ggml.fim_sep_token_id" };
    add_eog(tok, tok->eos);
    QN_TRY(read_tokens(tok, file, QN_KEY_EOS_IDS, MAX_LISTED, add_listed_eog, 0));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int32_t token;
        QN_TRY(qn_tokenizer_read_id(tok, file, keys[i], &token));
        add_eog(tok, token);
    }
    add_named(tok);
    return QN_OK;
}

static void write_note(qn_tokenizer *tok)
{
    const qn_vocab *vocab = &tok->vocab;
    if (!vocab->n_repeated)
        return;
    const qn_string text = qn_vocab_text(vocab, vocab->repeated[0]);
    qn_text_buffer note = QN_APPEND_TO(tok->note);
    qn_append(&note, "tokens %u and %u are both '%.*s': the first is used", vocab->repeated[0], vocab->repeated[1],
              (int)(text.length < 40 ? text.length : 40), text.data);
    if (vocab->n_repeated > 1)
        qn_append(&note, "; %zu more tokens are spelled like earlier ones", vocab->n_repeated - 1);
}

static qn_status load_bpe(qn_tokenizer *tok, const qn_gguf *file)
{
    qn_string pre = { "default", 7 };
    QN_TRY(qn_gguf_get_string(file, "tokenizer.ggml.pre", false, &pre));
    const qn_status status = qn_pretokenizer_create(pre, &tok->pre);
    if (status != QN_OK)
        return qn_fail(status, "%s: %s", qn_gguf_path(file), qn_error_text());
    QN_TRY(qn_vocab_load(&tok->vocab, file, QN_SPELLING_BYTE_LEVEL));
    QN_TRY(qn_merges_load(&tok->merges, &tok->vocab, file));
    tok->add_bos = qn_pretokenizer_adds_bos(tok->pre);
    tok->nfc = qn_pretokenizer_normalizes(tok->pre);
    tok->ignore_merges = qn_pretokenizer_ignores_merges(tok->pre);
    snprintf(tok->name, sizeof tok->name, "gpt2/%s", qn_pretokenizer_name(tok->pre));
    return QN_OK;
}

static qn_status load_spm(qn_tokenizer *tok, const qn_gguf *file)
{
    QN_TRY(qn_vocab_load(&tok->vocab, file, QN_SPELLING_SENTENCEPIECE));
    QN_TRY(qn_spm_load(&tok->spm, &tok->vocab, file));
    tok->add_bos = true;
    snprintf(tok->name, sizeof tok->name, "llama");
    return QN_OK;
}

/* Form C has more than a fifth of a text's bytes: each character shares the bytes of the composed characters that its
 * decomposition can be part of, U+1FBE least of all. A test goes through all characters. */
enum { NFC_SHRINKS = 5 };

/* Returns the most bytes of a text that can become one token: those of the longest token. A token's bytes are those of
 * the text, in form C, if each byte has a token. */
static size_t find_most_bytes(const qn_tokenizer *tok)
{
    size_t longest = 1;
    for (size_t byte = 0; byte < 256; byte++)
        if (tok->is_spm || tok->strips || tok->vocab.byte_to_token[byte] < 0)
            return 0;
    for (uint32_t token = 0; token < tok->vocab.n_tokens; token++) {
        const size_t piece = tok->vocab.piece_offsets[token + 1] - tok->vocab.piece_offsets[token],
                     text = qn_vocab_text(&tok->vocab, token).length; /* how special tokens are spelled */
        longest = piece > longest ? piece : longest;
        longest = text > longest ? text : longest;
    }
    return longest * (tok->nfc ? NFC_SHRINKS : 1);
}

static qn_status load(qn_tokenizer *tok, const qn_gguf *file)
{
    enum { LLAMA_BOS = 1, LLAMA_EOS = 2 };
    QN_TRY(load_model_name(file, &tok->is_spm));
    QN_TRY((tok->is_spm ? load_spm : load_bpe)(tok, file));
    QN_TRY(get_token(tok, file, "tokenizer.ggml.bos_token_id", tok->is_spm ? LLAMA_BOS : -1, &tok->bos));
    QN_TRY(get_token(tok, file, "tokenizer.ggml.eos_token_id", tok->is_spm ? LLAMA_EOS : -1, &tok->eos));
    QN_TRY(qn_gguf_get_bool(file, "tokenizer.ggml.add_bos_token", false, &tok->add_bos));
    QN_TRY(qn_gguf_get_bool(file, "tokenizer.ggml.add_eos_token", false, &tok->add_eos));
    QN_TRY(load_eog(tok, file));
    QN_TRY(qn_gguf_get_bool(file, QN_KEY_NFC, false, &tok->nfc));
    QN_TRY(qn_gguf_get_bool(file, QN_KEY_IGNORE_MERGES, false, &tok->ignore_merges));
    QN_TRY(read_tokens(tok, file, QN_KEY_LSTRIP_IDS, tok->vocab.n_tokens, add_strip, LSTRIP));
    QN_TRY(read_tokens(tok, file, QN_KEY_RSTRIP_IDS, tok->vocab.n_tokens, add_strip, RSTRIP));
    tok->most_bytes = find_most_bytes(tok);
    write_note(tok);
    return QN_OK;
}

qn_status qn_tokenizer_create(const qn_gguf *file, qn_tokenizer **out)
{
    *out = NULL;
    qn_tokenizer *tok;
    QN_TRY(qn_alloc(&tok, 1, sizeof *tok, "tokeniser"));
    const qn_status status = load(tok, file);
    if (status == QN_OK)
        *out = tok;
    else
        qn_tokenizer_free(tok);
    return status;
}

void qn_tokenizer_free(qn_tokenizer *tok)
{
    if (!tok)
        return;
    qn_pretokenizer_free(tok->pre);
    qn_merges_free(&tok->merges);
    qn_spm_free(&tok->spm);
    qn_vocab_free(&tok->vocab);
    qn_free(tok->strips);
    qn_free(tok);
}

/* ---- Encoding ---- */

/* Merging takes 50 times the memory of a piece. Longer pieces, which no word is, are tokenised in parts. */
enum { MAX_PART = 256 << 10 };

typedef struct encoder {
    const qn_tokenizer *tok;
    qn_matcher *matcher;
    qn_nfc_scratch nfc;
    qn_bpe_scratch bpe;
    qn_spm_scratch spm;
    int32_t *tokens;
    size_t n_tokens, capacity;
    size_t most, n_more;    /* limit of stored tokens; number of tokens beyond it */
    const bool *structural; /* or NULL */
} encoder;

/* Counts n tokens written after the stored ones. */
static void keep(encoder *e, size_t n)
{
    const size_t room = e->most - e->n_tokens;
    e->n_tokens += n < room ? n : room;
    e->n_more += n < room ? 0 : n - room;
}

static qn_status reserve(encoder *e, size_t more)
{
    size_t need;
    if (!qn_add_size(e->n_tokens, more, &need))
        return qn_fail(QN_ERR_MEMORY, "tokens: %zu and %zu more do not fit in memory", e->n_tokens, more);
    return qn_realloc_array(&e->tokens, &e->capacity, need, sizeof *e->tokens, "tokens");
}

static qn_status append_token(void *encoding, int32_t token)
{
    encoder *e = encoding;
    QN_TRY(reserve(e, 1));
    e->tokens[e->n_tokens] = token;
    keep(e, 1);
    return QN_OK;
}

static qn_status encode_part(encoder *e, const char *piece, size_t length)
{
    if (e->tok->ignore_merges) {
        const int32_t whole = qn_vocab_find_bytes(&e->tok->vocab, piece, length);
        if (whole >= 0)
            return append_token(e, whole);
    }
    QN_TRY(reserve(e, length));
    int32_t *tokens = e->tokens + e->n_tokens;
    size_t n = 0;
    for (size_t i = 0; i < length; i++) {
        const int32_t token = e->tok->vocab.byte_to_token[(unsigned char)piece[i]];
        if (token >= 0)
            tokens[n++] = token;
    }
    QN_TRY(qn_bpe_merge(&e->tok->merges, &e->bpe, e->structural, tokens, &n));
    keep(e, n);
    return QN_OK;
}

/* Returns the length of a part: it ends before a character, if there is one. */
static size_t part_of(const char *piece, size_t length)
{
    enum { CONTINUATION = 3 };
    size_t n = length < MAX_PART ? length : MAX_PART;
    for (int i = 0; n < length && i < CONTINUATION && ((unsigned char)piece[n] & 0xc0) == 0x80; i++)
        n--;
    return n;
}

static qn_status encode_piece(void *user, const char *piece, size_t length)
{
    for (size_t n; length; piece += n, length -= n) {
        n = part_of(piece, length);
        QN_TRY(encode_part(user, piece, n));
    }
    return QN_OK;
}

static qn_status encode_utf8(encoder *e, const char *text, size_t length)
{
    if (e->tok->nfc)
        QN_TRY(qn_nfc(&e->nfc, text, length, &text, &length));
    return qn_pretokenize(e->tok->pre, e->matcher, text, length, encode_piece, e);
}

/* Runs of valid UTF-8 alternate with runs of other bytes. */
static qn_status encode_bytes(encoder *e, const char *text, size_t length)
{
    for (size_t begin = 0, end = 0; begin < length; begin = end) {
        uint32_t code;
        size_t bytes;
        const bool valid = qn_utf8_next(text + begin, length - begin, &bytes, &code) == QN_UTF8_COMPLETE;
        for (end = begin + bytes; end < length; end += bytes)
            if ((qn_utf8_next(text + end, length - end, &bytes, &code) == QN_UTF8_COMPLETE) != valid)
                break;
        QN_TRY(valid ? encode_utf8(e, text + begin, end - begin) : encode_piece(e, text + begin, end - begin));
    }
    return QN_OK;
}

/* Encodes bytes [begin, end) of a text, which have no special tokens and follow one unless begin is 0. */
static qn_status encode_plain(encoder *e, const qn_spanned_text *t, size_t begin, size_t end)
{
    if (!e->tok->is_spm)
        return encode_bytes(e, t->text + begin, end - begin);
    const qn_spm_text text = { .text = t->text + begin,
                               .length = end - begin,
                               .begins = !begin && !t->continues,
                               .ends = end == t->length,
                               .prefixed = begin || !t->continues,
                               .without = e->structural };
    return qn_spm_encode(&e->tok->spm, &e->tok->vocab, &e->spm, &text, append_token, e);
}

/* Returns the special token at byte `at` of a span, or -1. Control and structural tokens must end within the span. */
static int32_t special_at(const encoder *e, const qn_spanned_text *t, size_t at, const qn_text_span *span,
                          size_t *match)
{
    const qn_vocab *vocab = &e->tok->vocab;
    const char *text = t->text + at;
    const int32_t special =
        span->parse_special ? qn_vocab_special_at(vocab, text, span->end - at, true, NULL, match) : -1;
    return special >= 0 ? special : qn_vocab_special_at(vocab, text, t->length - at, false, t->structural, match);
}

/* Whether a character is Unicode's White_Space, which Hugging Face's tokenizers strip. */
static bool is_white(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Returns the number of bytes of white space at the beginning of a text. */
static size_t white_prefix(const char *text, size_t length)
{
    size_t n = 0, bytes;
    uint32_t code;
    while (n < length && qn_utf8_next(text + n, length - n, &bytes, &code) == QN_UTF8_COMPLETE && is_white(code))
        n += bytes;
    return n;
}

/* Returns the number of bytes of white space at the end of a text. */
static size_t white_suffix(const char *text, size_t length)
{
    size_t end = length, bytes;
    uint32_t code;
    while (end) {
        size_t at = end - 1;
        while (at && end - at < 4 && ((unsigned char)text[at] & 0xc0) == 0x80)
            at--;
        if (qn_utf8_next(text + at, end - at, &bytes, &code) != QN_UTF8_COMPLETE || at + bytes != end ||
            !is_white(code))
            break;
        end = at;
    }
    return length - end;
}

static qn_status encode(encoder *e, const qn_spanned_text *t, bool add_bos)
{
    const char *text = t->text;
    const size_t length = t->length;
    const qn_text_span *span = t->spans;
    QN_TRY(qn_matcher_create(&e->matcher));
    /* The result is not NULL even without tokens. It is allocated for one token a byte, which is rarely exceeded:
     * memory that is not written costs nothing, whereas growing an array keeps it twice for a moment. */
    QN_TRY(reserve(e, (length < e->most ? length : e->most) + 1));
    if (add_bos && e->tok->add_bos && e->tok->bos >= 0)
        QN_TRY(append_token(e, e->tok->bos));
    size_t plain = 0, match = 0;
    for (size_t at = 0; at < length;) {
        while (at >= span->end)
            span++;
        const int32_t special = special_at(e, t, at, span, &match);
        if (special < 0) {
            at++;
            continue;
        }
        const unsigned strips = e->tok->strips ? e->tok->strips[special] : 0;
        const size_t before = strips & LSTRIP ? white_suffix(text + plain, at - plain) : 0;
        QN_TRY(encode_plain(e, t, plain, at - before));
        QN_TRY(append_token(e, special));
        at += match;
        plain = at += strips & RSTRIP ? white_prefix(text + at, length - at) : 0;
    }
    return encode_plain(e, t, plain, length);
}

static qn_status encode_text(const qn_tokenizer *tok, const qn_spanned_text *text, bool add_bos, size_t most,
                             int32_t **tokens, size_t *count)
{
    *tokens = NULL;
    *count = 0;
    if (text->length > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "a text of %zu bytes is too long to tokenise, at most %d are allowed",
                       text->length, INT32_MAX);
    encoder e = { .tok = tok, .most = most, .structural = text->structural };
    const qn_status status = encode(&e, text, add_bos);
    qn_matcher_free(e.matcher);
    qn_nfc_scratch_free(&e.nfc);
    qn_bpe_scratch_free(&e.bpe);
    qn_spm_scratch_free(&e.spm);
    if (status != QN_OK) {
        free(e.tokens);
        return status;
    }
    int32_t *fitted = realloc(e.tokens, (e.n_tokens + 1) * sizeof *fitted);
    *tokens = fitted ? fitted : e.tokens;
    *count = e.n_tokens + e.n_more;
    return QN_OK;
}

qn_status qn_tokenizer_encode(const qn_tokenizer *tok, const char *text, size_t length, bool parse_special,
                              bool add_bos, int32_t **tokens, size_t *count)
{
    const qn_text_span span = { length, parse_special };
    const qn_spanned_text whole = { .text = text, .length = length, .spans = &span, .n_spans = 1 };
    return encode_text(tok, &whole, add_bos, SIZE_MAX, tokens, count);
}

qn_status qn_tokenizer_encode_rest(const qn_tokenizer *tok, const char *text, size_t length, bool parse_special,
                                   int32_t **tokens, size_t *count)
{
    const qn_text_span span = { length, parse_special };
    const qn_spanned_text rest = { .text = text, .length = length, .spans = &span, .n_spans = 1, .continues = true };
    return encode_text(tok, &rest, false, SIZE_MAX, tokens, count);
}

qn_status qn_tokenizer_encode_spans(const qn_tokenizer *tok, const qn_spanned_text *text, size_t most, int32_t **tokens,
                                    size_t *count)
{
    *tokens = NULL;
    *count = 0;
    const size_t end = text->n_spans ? text->spans[text->n_spans - 1].end : 0;
    if (text->length && end != text->length)
        return qn_fail(QN_ERR_INVALID, "the spans of a text of %zu bytes end at %zu", text->length, end);
    return encode_text(tok, text, false, most, tokens, count);
}

size_t qn_tokenizer_least_tokens(const qn_tokenizer *tok, size_t length)
{
    return tok->most_bytes ? length / tok->most_bytes + (length % tok->most_bytes != 0) : 0;
}

static bool is_space(const char *text, size_t length)
{
    static const char space[] = " \t\n\v\f\r";
    for (size_t i = 0; i < length; i++)
        if (!memchr(space, text[i], sizeof space - 1))
            return false;
    return true;
}

void qn_tokenizer_mark_structural(const qn_tokenizer *tok, const char *text, size_t length, bool *structural)
{
    /* At each byte finds the longest unmarked token, then shorter ones. So each token is found once. */
    for (size_t at = 0; at < length; at++)
        for (size_t left = length - at; left > 1;) {
            size_t match = 0;
            const int32_t token = qn_vocab_special_at(&tok->vocab, text + at, left, false, structural, &match);
            if (token < 0 || match == 1 || is_space(text + at, match)) /* then so are the shorter ones */
                break;
            structural[token] = true;
            left = match - 1;
        }
}

/* ---- Tokens ---- */

static bool has_token(const qn_tokenizer *tok, int32_t token)
{
    return token >= 0 && (size_t)token < tok->vocab.n_tokens;
}

qn_status qn_tokenizer_piece(const qn_tokenizer *tok, int32_t token, const char **bytes, size_t *length)
{
    if (!has_token(tok, token))
        return qn_fail(QN_ERR_INVALID, "token %d is outside the vocabulary of %zu tokens", token, tok->vocab.n_tokens);
    const qn_string piece = qn_vocab_piece(&tok->vocab, (uint32_t)token);
    *bytes = piece.data;
    *length = piece.length;
    return QN_OK;
}

bool qn_tokenizer_is_special(const qn_tokenizer *tok, int32_t token)
{
    return has_token(tok, token) && qn_vocab_is_control(&tok->vocab, token);
}

bool qn_tokenizer_is_eog(const qn_tokenizer *tok, int32_t token)
{
    for (size_t i = 0; i < tok->n_eog; i++)
        if (tok->eog_tokens[i] == token)
            return true;
    return false;
}

size_t qn_tokenizer_n_vocab(const qn_tokenizer *tok)
{
    return tok->vocab.n_tokens;
}

int32_t qn_tokenizer_bos(const qn_tokenizer *tok)
{
    return tok->bos;
}

int32_t qn_tokenizer_eos(const qn_tokenizer *tok)
{
    return tok->eos;
}

bool qn_tokenizer_adds_bos(const qn_tokenizer *tok)
{
    return tok->add_bos && tok->bos >= 0;
}

bool qn_tokenizer_adds_eos(const qn_tokenizer *tok)
{
    return tok->add_eos && tok->eos >= 0;
}

int32_t qn_tokenizer_find(const qn_tokenizer *tok, const char *name)
{
    const size_t length = strlen(name);
    size_t match = 0;
    const int32_t token = qn_vocab_special_at(&tok->vocab, name, length, true, NULL, &match);
    return token >= 0 && match == length ? token : -1;
}

const char *qn_tokenizer_note(const qn_tokenizer *tok)
{
    return tok->note[0] ? tok->note : NULL;
}

const char *qn_tokenizer_name(const qn_tokenizer *tok)
{
    return tok->name;
}
