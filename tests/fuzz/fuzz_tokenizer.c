/* src/text/ with arbitrary bytes: for any input, tokens decode to it again (in form C if the tokeniser normalises), no
 * text becomes a control or structural token without being asked, output is whole characters, and stop strings are
 * found where a plain search finds them.
 *
 * An input is: a byte that selects the check and the pre-tokeniser, a byte that determines the cuts of streamed
 * text, the text. */
#include "fuzz.h"

#include "chat/chat.h"
#include "text/stop.h"
#include "text/tokenizer.h"
#include "text/utf8_stream.h"

#include "../unit/helper_vocab.h"

#include <utf8proc.h>

static const char *const pres[] = {
    "qwen2", "qwen35", "smollm", "llama-bpe", "gpt-2", "tekken", "deepseek-v3", "gpt-4o"
};
enum { N_PRES = sizeof pres / sizeof *pres, N_FORM_C = 2 };

static const char *const merges[] = { "Ġ Ġ",  "ĠĠ ĠĠ", "a a", "aa aa", "Ġ a", "b c", "a b",
                                      "ab c", "Ã ©",   "1 1", "Ċ Ċ",   "ÿ ÿ", NULL };
static const struct added_token added[] = { { "<|endoftext|>", 3 }, { "<|im_start|>", 3 }, { "<|im_end|>", 3 },
                                            { "<t>", 4 },           { "<t><t>", 4 },       { NULL, 0 } };
static const char template[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n<t>' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/* SentencePiece: tokens that overlap, an unused one, and equal scores. */
static const struct spm_token spm_tokens[] = { { "\xe2\x96\x81", 1, -1 },
                                               { "a", 1, -2 },
                                               { "b", 1, -2 },
                                               { "ab", 1, -3 },
                                               { "ba", 1, -3 },
                                               { "aba", 5, -1 },
                                               { "abab", 1, -4 },
                                               { "\xe2\x96\x81\xe2\x96\x81", 1, -5 },
                                               { "\xe2\x96\x81"
                                                 "a",
                                                 1, -6 },
                                               { "\xc3\xa9", 1, -7 },
                                               { "<t>", 4, 0 },
                                               { "<|im_end|>", 3, 0 },
                                               { NULL, 0, 0 } };
static qn_tokenizer *spm;

static qn_tokenizer *tokenizers[N_PRES];
static qn_chat_template *chat;

static qn_status create(const struct vocab_spec *spec, qn_tokenizer **tok, qn_chat_template **chat_out)
{
    struct file_bytes bytes = make_vocab(spec);
    qn_gguf *file;
    require(qn_gguf_open_memory(bytes.data, bytes.n, "fuzz", &file) == QN_OK, "the file opens");
    qn_status status = qn_tokenizer_create(file, tok);
    if (status == QN_OK && chat_out)
        status = qn_chat_template_create(file, *tok, NULL, chat_out);
    qn_gguf_close(file);
    free(bytes.data);
    return status;
}

static qn_status create_spm(const struct spm_spec *spec, qn_tokenizer **tok)
{
    struct file_bytes bytes = make_spm_vocab(spec);
    qn_gguf *file;
    require(qn_gguf_open_memory(bytes.data, bytes.n, "fuzz", &file) == QN_OK, "the file opens");
    const qn_status status = qn_tokenizer_create(file, tok);
    qn_gguf_close(file);
    free(bytes.data);
    return status;
}

static void set_up(void)
{
    const struct spm_spec spm_spec = { .tokens = spm_tokens, .with_bytes = true, .space_prefix = 1 };
    require(create_spm(&spm_spec, &spm) == QN_OK, "the vocabulary loads");
    for (size_t i = 0; i < N_PRES; i++) {
        const struct vocab_spec spec = {
            .model = "gpt2", .pre = pres[i], .merges = merges, .added = added, .chat_template = template
        };
        require(create(&spec, &tokenizers[i], i ? NULL : &chat) == QN_OK, "the vocabulary loads");
    }
}

/* Encodes and decodes. free() the result. */
static char *round_trip(const qn_tokenizer *tok, const char *text, size_t n, bool special, size_t *n_decoded)
{
    int32_t *tokens;
    size_t count, capacity = 4 * n + 16; /* form C has at most three times as many bytes of UTF-8 */
    require(qn_tokenizer_encode(tok, text, n, special, false, &tokens, &count) == QN_OK && tokens, "a text encodes");
    char *decoded = malloc(capacity);
    require(decoded, "memory");
    *n_decoded = 0;
    for (size_t i = 0; i < count; i++) {
        const char *bytes;
        size_t length;
        require(qn_tokenizer_piece(tok, tokens[i], &bytes, &length) == QN_OK, "tokens are in the vocabulary");
        require(special || !qn_tokenizer_is_special(tok, tokens[i]), "text is no control token");
        require(*n_decoded + length <= capacity, "tokens are no longer than the text");
        memcpy(decoded + *n_decoded, bytes, length);
        *n_decoded += length;
    }
    free(tokens);
    return decoded;
}

static bool same(const char *a, size_t n_a, const char *b, size_t n_b)
{
    return n_a == n_b && (!n_a || !memcmp(a, b, n_a));
}

static bool is_utf8(const char *text, size_t n)
{
    size_t bytes;
    for (size_t i = 0; i < n; i += bytes) {
        uint32_t code;
        if (qn_utf8_next(text + i, n - i, &bytes, &code) != QN_UTF8_COMPLETE)
            return false;
    }
    return true;
}

static void check_tokenizer(size_t which, const char *text, size_t n)
{
    const qn_tokenizer *tok = tokenizers[which];
    for (int special = 0; special < 2; special++) {
        size_t n_decoded, n_again;
        char *decoded = round_trip(tok, text, n, special, &n_decoded);
        if (which >= N_FORM_C) {
            require(same(decoded, n_decoded, text, n), "the same bytes come back");
        } else {
            char *again = round_trip(tok, decoded, n_decoded, special, &n_again);
            require(same(again, n_again, decoded, n_decoded), "form C stays what it is");
            free(again);
            if (is_utf8(text, n) && !(n && memchr(text, '<', n))) {
                utf8proc_uint8_t *normal = NULL;
                const utf8proc_ssize_t length = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n,
                                                             &normal, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
                require(length >= 0 && same(decoded, n_decoded, (const char *)normal, (size_t)length),
                        "form C is utf8proc's");
                free(normal);
            }
        }
        free(decoded);
    }
}

/* A vocabulary with tokens from the input: it is refused, or it works. */
static void check_vocabulary(size_t which, const char *text, size_t n)
{
    char *words = malloc(n + 1);
    require(words, "memory");
    memcpy(words, text, n);
    words[n] = '\0';
    struct added_token own[9] = { { NULL, 0 } };
    const char *merge = NULL;
    size_t n_own = 0;
    for (size_t i = 0; i < n && n_own < 8; i += strlen(words + i) + 1) {
        if (i && words[i] == '=')
            merge = words + i + 1;
        else
            own[n_own++] = (struct added_token){ words + i, (int)((unsigned char)words[i] % 8) };
    }
    const struct vocab_spec spec = {
        .model = "gpt2", .pre = pres[which], .merges = merges, .added = own, .bad_merge = merge
    };
    qn_tokenizer *tok;
    if (create(&spec, &tok, NULL) == QN_OK) {
        size_t n_decoded;
        char *decoded = round_trip(tok, text, n, n % 2, &n_decoded);
        require(which < N_FORM_C || same(decoded, n_decoded, text, n), "the same bytes come back from any vocabulary");
        free(decoded);
        qn_tokenizer_free(tok);
    } else {
        require(*qn_error_text(), "a refusal has a text");
    }
    free(words);
}

/* Without a space before the text, all its bytes come back; U+2581 is a space. A vocabulary with tokens from the text
 * and scores from `scores` is refused, or it works. */
static void check_spm(const char *text, size_t n, uint8_t scores)
{
    size_t n_decoded, n_spaces = 0;
    char *words = malloc(n + 1), *spaces = malloc(n + 1);
    require(words && spaces, "memory");
    for (size_t i = 0; i < n; n_spaces++) {
        const bool is_space = n - i >= 3 && !memcmp(text + i, "\xe2\x96\x81", 3);
        spaces[n_spaces] = is_space ? ' ' : text[i];
        i += is_space ? 3 : 1;
    }
    for (int special = 0; special < 2; special++) {
        char *decoded = round_trip(spm, text, n, special, &n_decoded);
        require(same(decoded, n_decoded, spaces, n_spaces), "the same bytes come back");
        free(decoded);
    }
    memcpy(words, text, n);
    words[n] = '\0';
    struct spm_token own[33] = { { NULL, 0, 0 } };
    size_t n_own = 0;
    for (size_t i = 0; i < n && n_own < 32; i += strlen(words + i) + 1, n_own++) {
        const int kind = (unsigned char)words[i] % 8;
        own[n_own] = (struct spm_token){ words + i, kind, (float)(scores * (n_own + 1) % 7) };
    }
    const struct spm_spec spec = { .tokens = own,
                                   .with_bytes = scores % 2,
                                   .space_prefix = scores / 2 % 3,
                                   .remove_spaces = scores / 6 % 3,
                                   .no_scores = scores > 250 };
    qn_tokenizer *tok;
    if (create_spm(&spec, &tok) == QN_OK) {
        int32_t *tokens;
        size_t count;
        require(qn_tokenizer_encode(tok, text, n, n % 2, true, &tokens, &count) == QN_OK, "a text encodes");
        for (size_t i = 0; i < count; i++)
            require(tokens[i] >= 0 && (size_t)tokens[i] < qn_tokenizer_n_vocab(tok), "tokens are in the vocabulary");
        free(tokens);
        qn_tokenizer_free(tok);
    } else {
        require(*qn_error_text(), "a refusal has a text");
    }
    free(words);
    free(spaces);
}

/* The end of the next piece of a stream. */
static size_t cut(size_t at, size_t n, uint8_t cuts)
{
    const size_t step = 1 + (cuts + at * 7) % (1 + cuts % 11u);
    return n - at < step ? n : at + step;
}

static void check_stream(const char *text, size_t n, uint8_t cuts)
{
    qn_utf8_stream stream = { 0 }, once = { 0 };
    const char *piece, *whole;
    size_t length, n_whole, n_out = 0;
    char *out = malloc(3 * n + 4), *expected = malloc(3 * n + 4);
    require(out && expected, "memory");
    for (size_t at = 0, end; at < n; at = end) {
        end = cut(at, n, cuts);
        require(qn_utf8_stream_feed(&stream, text + at, end - at, &piece, &length) == QN_OK, "a piece goes in");
        require(is_utf8(piece, length) && stream.n_tail <= 3, "what comes out is whole");
        memcpy(out + n_out, piece, length);
        n_out += length;
    }
    require(qn_utf8_stream_flush(&stream, &piece, &length) == QN_OK, "the end");
    memcpy(out + n_out, piece, length);
    n_out += length;
    require(qn_utf8_stream_feed(&once, text, n, &whole, &n_whole) == QN_OK, "all at once");
    memcpy(expected, whole, n_whole);
    require(qn_utf8_stream_flush(&once, &piece, &length) == QN_OK, "the end");
    memcpy(expected + n_whole, piece, length);
    n_whole += length;
    require(same(out, n_out, expected, n_whole), "cutting changes nothing");
    require(!is_utf8(text, n) || same(out, n_out, text, n), "whole text passes unchanged");
    free(out);
    free(expected);
    qn_utf8_stream_free(&stream);
    qn_utf8_stream_free(&once);
}

/* The first lines of the input are the stop strings, the rest is the text. */
static void check_stop(const char *text, size_t n, uint8_t cuts)
{
    char *copy = malloc(n + 1), *out = malloc(n + 1), *strings[4];
    require(copy && out, "memory");
    memcpy(copy, text, n);
    copy[n] = '\0';
    size_t n_strings = 0, at = 0;
    while (n_strings < 4) {
        char *line_end = memchr(copy + at, '\n', n - at);
        if (!line_end)
            break;
        *line_end = '\0';
        strings[n_strings++] = copy + at;
        at = (size_t)(line_end - copy) + 1;
    }
    text = copy + at;
    n -= at;
    qn_stop_strings *made;
    qn_stop *stop;
    if (qn_stop_strings_create((const char *const *)strings, n_strings, &made) == QN_OK) {
        require(qn_stop_create(made, &stop) == QN_OK, "a search begins");
        size_t n_out = 0, length, end = 0, match = 0;
        for (end = 1; end <= n && !match; end++)
            for (size_t i = 0; i < n_strings; i++) {
                const size_t l = strlen(strings[i]);
                if (l <= end && l > match && !memcmp(text + end - l, strings[i], l))
                    match = l;
            }
        const size_t expected = match ? end - 1 - match : n;
        const char *safe;
        bool hit = false;
        for (size_t from = 0, to; from < n; from = to) {
            to = cut(from, n, cuts);
            require(qn_stop_feed(stop, text + from, to - from, &safe, &length, &hit) == QN_OK, "a piece goes in");
            memcpy(out + n_out, safe, length);
            n_out += length;
            require(hit == (match && to >= end - 1), "a stop string is seen when it ends");
        }
        require(qn_stop_flush(stop, &safe, &length) == QN_OK, "the end");
        memcpy(out + n_out, safe, length);
        require(same(out, n_out + length, text, expected), "all before the stop string comes out");
        qn_stop_free(stop);
        qn_stop_strings_free(made);
    }
    free(copy);
    free(out);
}

static void check_chat(const char *text, size_t n)
{
    json_t *content = json_stringn_nocheck(text, n);
    json_t *conversation =
        json_pack("{s:[{s:s, s:o}], s:b}", "messages", "role", "user", "content", content, "add_generation_prompt", 1);
    require(conversation, "memory");
    int32_t *tokens;
    size_t count, control = 0, structural = 0;
    const int32_t mark = qn_tokenizer_find(tokenizers[0], "<t>");
    require(qn_chat_encode(tokenizers[0], chat, conversation, 0, &tokens, &count) == QN_OK, "a conversation encodes");
    for (size_t i = 0; i < count; i++) {
        control += qn_tokenizer_is_special(tokenizers[0], tokens[i]);
        structural += tokens[i] == mark;
    }
    require(control == 3, "a message adds no control token");
    require(structural == 1, "a message adds no structural token");
    free(tokens);
    json_decref(conversation);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!tokenizers[0])
        set_up();
    if (size < 2)
        return 0;
    const char *text = (const char *)data + 2;
    const size_t n = size - 2, which = data[0] % 8 % N_PRES;
    switch (data[0] / 8 % 8) {
    case 0: check_stream(text, n, data[1]); break;
    case 1: check_stop(text, n, data[1]); break;
    case 2: check_chat(text, n); break;
    case 3: check_vocabulary(which, text, n); break;
    case 4: check_spm(text, n, data[1]); break;
    default: check_tokenizer(which, text, n); break;
    }
    return 0;
}
