/* Vocabulary, merges and pre-tokeniser from tokenizer.json (https://github.com/huggingface/tokenizers). Ids without
 * a token, types of added tokens and the spelling of merges follow llama.cpp's converter (conversion/base.py,
 * gguf-py/gguf/vocab.py). */
#include "convert/tokenizer.h"

#include "base/append.h"
#include "base/memory.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "convert/checkpoint.h"
#include "gguf/json_decode.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENIZER_BYTES = 256 << 20, MAX_SETTINGS_BYTES = 16 << 20, MAX_TEMPLATE_BYTES = 4 << 20 };

qn_status qn_tokenizer_files_read(qn_tokenizer_files *f, const char *folder, const char *path, const qn_config *config)
{
    char other[QN_CHECKPOINT_PATH_MAX];
    size_t length;
    *f = (qn_tokenizer_files){ .folder = folder, .path = path, .config = config };
    QN_TRY(qn_json_read(path, MAX_TOKENIZER_BYTES, true, &f->tokenizer));
    QN_TRY(qn_checkpoint_path(folder, "tokenizer_config.json", other));
    QN_TRY(qn_json_read(other, MAX_SETTINGS_BYTES, false, &f->settings));
    QN_TRY(qn_checkpoint_path(folder, "generation_config.json", other));
    QN_TRY(qn_json_read(other, MAX_SETTINGS_BYTES, false, &f->generation));
    QN_TRY(qn_checkpoint_path(folder, "chat_template.json", other));
    QN_TRY(qn_json_read(other, MAX_TEMPLATE_BYTES, false, &f->template_file));
    QN_TRY(qn_checkpoint_path(folder, "chat_template.jinja", other));
    return qn_text_read(other, MAX_TEMPLATE_BYTES, false, &f->template_text, &length);
}

void qn_tokenizer_files_free(qn_tokenizer_files *f)
{
    json_decref(f->tokenizer);
    json_decref(f->settings);
    json_decref(f->generation);
    json_decref(f->template_file);
    free(f->template_text);
    *f = (qn_tokenizer_files){ 0 };
}

/* ---- Pre-tokeniser ---- */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LETTERS_AND(letters, not_letters, digits)                                                                      \
    "split " CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?" letters "+|" digits "| ?[^\\s" not_letters                         \
    "\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+\nbytes\n"

#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define WORDS(end, digits)                                                                                             \
    "split [^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" end "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" end           \
    "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+\nbytes\n"
/* U+4E00 to U+9FA5, Hiragana, Katakana. */
#define DEEPSEEK_V3                                                                                                    \
    "split \\p{N}{1,3}\nsplit [\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+\n"                                            \
    "split [!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"            \
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+\nbytes\n"

/* The steps of a pre_tokenizer, one a line, and its name in GGUF files. The name determines whether qn_pretokenizer
 * normalises to form C and ignores merges; keys are written if a tokeniser differs. */
static const struct {
    const char *name, *steps;
    bool nfc, ignore_merges;
} pretokenizers[] = {
    { "qwen2", LETTERS_AND("\\p{L}", "\\p{L}", "\\p{N}"), true, false },
    { "qwen35", LETTERS_AND("[\\p{L}\\p{M}]", "\\p{L}\\p{M}", "\\p{N}"), true, false },
    { "llama-bpe", LETTERS_AND("\\p{L}", "\\p{L}", "\\p{N}{1,3}"), false, true },
    { "tekken", WORDS("", "\\p{N}"), false, true },
    { "gpt-4o", WORDS(CONTRACTIONS "?", "\\p{N}{1,3}"), false, false },
    { "deepseek-v3", DEEPSEEK_V3, false, false },
    { "smollm", "digits\ngpt2 bytes\n", false, false },
    { "gpt-2", "gpt2 bytes\n", false, false },
};

enum { MAX_STEPS_TEXT = 1024, MAX_SEQUENCE_DEPTH = 4 };

static bool is_true(const json_t *object, const char *key, bool fallback)
{
    const json_t *value = json_object_get(object, key);
    return value ? json_is_true(value) : fallback;
}

/* Writes the steps in the spelling of the table; an unknown step is "?" and its type. */
static void describe(const json_t *step, int depth, qn_text_buffer *steps)
{
    const char *type = json_string_value(json_object_get(step, "type"));
    const char *regex = json_string_value(json_object_get(json_object_get(step, "pattern"), "Regex"));
    const char *behavior = json_string_value(json_object_get(step, "behavior"));
    const json_t *parts = json_object_get(step, "pretokenizers");
    type = type ? type : "none";
    if (strcmp(type, "Sequence") == 0 && depth < MAX_SEQUENCE_DEPTH)
        for (size_t i = 0; i < json_array_size(parts); i++)
            describe(json_array_get(parts, i), depth + 1, steps);
    else if (strcmp(type, "Split") == 0 && regex && behavior && strcmp(behavior, "Isolated") == 0 &&
             !is_true(step, "invert", false))
        qn_append(steps, "split %s\n", regex);
    else if (strcmp(type, "Digits") == 0 && is_true(step, "individual_digits", false))
        qn_append(steps, "digits\n");
    else if (strcmp(type, "ByteLevel") == 0 && !is_true(step, "add_prefix_space", true))
        qn_append(steps, is_true(step, "use_regex", true) ? "gpt2 bytes\n" : "bytes\n");
    else
        qn_append(steps, "?%s\n", type);
}

/* Whether the normaliser is NFC. No normaliser, or an empty sequence, is not. */
static qn_status find_nfc(const qn_tokenizer_files *f, const json_t *normalizer, const char *pre, bool *nfc)
{
    const char *type = json_string_value(json_object_get(normalizer, "type"));
    const json_t *parts = json_object_get(normalizer, "normalizers");
    if (!normalizer || json_is_null(normalizer))
        return QN_OK;
    if (type && strcmp(type, "Sequence") == 0 && json_is_array(parts)) {
        for (size_t i = 0; i < json_array_size(parts); i++)
            if (json_object_get(json_array_get(parts, i), "normalizers"))
                return qn_fail(QN_ERR_UNSUPPORTED, "%s: the normaliser is a sequence of sequences", f->path);
            else
                QN_TRY(find_nfc(f, json_array_get(parts, i), pre, nfc));
        return QN_OK;
    }
    if (!type || strcmp(type, "NFC") != 0)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: the normaliser '%.40s' is not supported with the pre-tokeniser %s",
                       f->path, type ? type : "without a type", pre);
    *nfc = true;
    return QN_OK;
}

static qn_status write_pretokenizer(qn_tokenizer_files *f, qn_gguf_writer *w)
{
    char steps[MAX_STEPS_TEXT];
    qn_text_buffer text = QN_APPEND_TO(steps);
    const bool ignore_merges = is_true(json_object_get(f->tokenizer, "model"), "ignore_merges", false);
    describe(json_object_get(f->tokenizer, "pre_tokenizer"), 0, &text);
    for (size_t i = 0; i < sizeof pretokenizers / sizeof *pretokenizers; i++) {
        if (strcmp(steps, pretokenizers[i].steps) != 0)
            continue;
        f->nfc = false;
        QN_TRY(find_nfc(f, json_object_get(f->tokenizer, "normalizer"), pretokenizers[i].name, &f->nfc));
        QN_TRY(qn_gguf_writer_add_string(w, "tokenizer.ggml.pre", pretokenizers[i].name));
        if (f->nfc != pretokenizers[i].nfc)
            QN_TRY(qn_gguf_writer_add_bool(w, QN_KEY_NFC, f->nfc));
        return ignore_merges != pretokenizers[i].ignore_merges
                   ? qn_gguf_writer_add_bool(w, QN_KEY_IGNORE_MERGES, ignore_merges)
                   : QN_OK;
    }
    return qn_fail(QN_ERR_UNSUPPORTED, "%s: quern has no such pre-tokeniser: %s", f->path, steps);
}

/* ---- Vocabulary ---- */

static qn_status check_id(const qn_tokenizer_files *f, const char *token, const json_t *id, size_t n)
{
    char found[QN_JSON_FOUND_BYTES];
    if (!json_is_integer(id) || json_integer_value(id) < 0 || (uint64_t)json_integer_value(id) >= n)
        return qn_fail(QN_ERR_FORMAT, "%s: token '%.40s' has the id %s, expected 0 to %zu (vocab_size of config.json)",
                       f->path, token, qn_json_found(id, found), n - 1);
    return QN_OK;
}

/* Whether an added token is special though not marked so, by llama.cpp's rule (does_token_look_special). */
static bool looks_special(const char *token)
{
    static const struct {
        const char *begin, *end;
    } marks[] = { { "<|", "|>" }, { "<\xef\xbd\x9c", "\xef\xbd\x9c>" }, { "<unused", ">" } };
    static const char *const names[] = { "<pad>", "<mask>", "<2mass>", "[@BOS@]" };
    const size_t n = strlen(token);
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        const size_t begin = strlen(marks[i].begin), end = strlen(marks[i].end);
        if (n >= begin && n >= end && strncmp(token, marks[i].begin, begin) == 0 &&
            strcmp(token + n - end, marks[i].end) == 0)
            return true;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(token, names[i]) == 0)
            return true;
    return false;
}

static qn_status check_token(const qn_tokenizer_files *f, const qn_token_list *v, const char *content, size_t i)
{
    const qn_string *old = &v->tokens[i];
    if (old->data && !qn_string_equals(*old, content))
        return qn_fail(QN_ERR_FORMAT, "%s: id %zu has two tokens, '%.40s' and '%.40s'", f->path, i, old->data, content);
    return QN_OK;
}

static bool is_added(const qn_token_list *v, size_t i)
{
    return v->types[i] == QN_TOKEN_CONTROL || v->types[i] == QN_TOKEN_USER_DEFINED;
}

static qn_status add_token(const qn_tokenizer_files *f, qn_token_list *v, const char *content, const json_t *id,
                           qn_token_type type)
{
    QN_TRY(check_id(f, content, id, v->n));
    const size_t i = (size_t)json_integer_value(id);
    QN_TRY(check_token(f, v, content, i));
    v->tokens[i] = (qn_string){ content, strlen(content) };
    v->types[i] = type;
    return QN_OK;
}

static qn_status add_added_token(const qn_tokenizer_files *f, qn_token_list *v, const json_t *entry, const json_t *id)
{
    const char *content = json_string_value(json_object_get(entry, "content"));
    if (!content)
        return qn_fail(QN_ERR_FORMAT, "%s: an added token has no content", f->path);
    const bool control = json_is_true(json_object_get(entry, "special")) || looks_special(content);
    return add_token(f, v, content, id, control ? QN_TOKEN_CONTROL : QN_TOKEN_USER_DEFINED);
}

/* transformers also adds the tokens of tokenizer_config.json, whose keys are ids. */
static qn_status add_settings_tokens(const qn_tokenizer_files *f, qn_token_list *v)
{
    const char *key;
    json_t *entry;
    json_object_foreach(json_object_get(f->settings, "added_tokens_decoder"), key, entry)
    {
        char *end;
        const long long number = strtoll(key, &end, 10);
        json_t *id = *end || end == key ? NULL : json_integer(number);
        const char *content = json_string_value(json_object_get(entry, "content"));
        qn_status status = check_id(f, content ? content : key, id, v->n);
        if (!status && is_added(v, (size_t)number))
            status = content ? check_token(f, v, content, (size_t)number) : QN_OK;
        else if (!status)
            status = add_added_token(f, v, entry, id);
        json_decref(id);
        QN_TRY(status);
    }
    return QN_OK;
}

/* Names the ids without a token "[PADn]". */
static qn_status name_unused(qn_token_list *v)
{
    enum { LENGTH = 24 };
    size_t n_unused = 0;
    for (size_t i = 0; i < v->n; i++)
        n_unused += v->tokens[i].data == NULL;
    QN_TRY(qn_alloc(&v->names, n_unused, LENGTH, "names of unused tokens"));
    char *name = v->names;
    for (size_t i = 0; i < v->n; i++)
        if (!v->tokens[i].data) {
            qn_text_buffer text = qn_append_to(name, LENGTH);
            qn_append(&text, "[PAD%zu]", i);
            v->tokens[i] = (qn_string){ name, text.length };
            v->types[i] = QN_TOKEN_UNUSED;
            name += LENGTH;
        }
    return QN_OK;
}

static qn_status fill(const qn_tokenizer_files *f, qn_token_list *v)
{
    const json_t *model = json_object_get(f->tokenizer, "model"),
                 *added = json_object_get(f->tokenizer, "added_tokens");
    const char *token;
    json_t *id;
    QN_TRY(qn_alloc(&v->tokens, v->n, sizeof *v->tokens, "tokens"));
    QN_TRY(qn_alloc(&v->types, v->n, sizeof *v->types, "types of tokens"));
    json_object_foreach(json_object_get(model, "vocab"), token, id) QN_TRY(add_token(f, v, token, id, QN_TOKEN_NORMAL));
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *entry = json_array_get(added, i);
        QN_TRY(add_added_token(f, v, entry, json_object_get(entry, "id")));
    }
    QN_TRY(add_settings_tokens(f, v));
    return name_unused(v);
}

qn_status qn_token_list_read(const qn_tokenizer_files *f, qn_token_list *list)
{
    *list = (qn_token_list){ .n = f->config->n_vocab };
    return fill(f, list);
}

void qn_token_list_free(qn_token_list *list)
{
    qn_free(list->tokens);
    qn_free(list->types);
    qn_free(list->names);
    *list = (qn_token_list){ 0 };
}

static qn_status write_vocabulary(const qn_tokenizer_files *f, qn_gguf_writer *w)
{
    qn_token_list v;
    qn_status status = qn_token_list_read(f, &v);
    if (!status)
        status = qn_gguf_writer_add_strings(w, "tokenizer.ggml.tokens", v.tokens, v.n);
    if (!status)
        status = qn_gguf_writer_add_i32s(w, "tokenizer.ggml.token_type", v.types, v.n);
    qn_token_list_free(&v);
    return status;
}

/* ---- Merges ---- */

/* Appends a part of a merge. A space in it would end the part, so it is spelled as in the byte alphabet, U+0120. */
static char *append_part(char *at, const char *part)
{
    for (; *part; part++) {
        if (*part == ' ')
            at = qn_mempcpy(at, "\xc4\xa0", 2);
        else
            *at++ = *part;
    }
    return at;
}

/* Spells a merge, which is "a b" in older files and ["a", "b"] in newer ones. `text` has room for all merges. */
static qn_status spell_merge(const qn_tokenizer_files *f, size_t i, const json_t *merge, char **text, qn_string *out)
{
    const char *whole = json_string_value(merge);
    const char *a = json_string_value(json_array_get(merge, 0)), *b = json_string_value(json_array_get(merge, 1));
    if (whole && strchr(whole, ' ')) {
        *out = (qn_string){ whole, strlen(whole) };
        return QN_OK;
    }
    if (!a || !b || json_array_size(merge) != 2)
        return qn_fail(QN_ERR_FORMAT, "%s: merge %zu does not have two parts", f->path, i);
    char *end = append_part(*text, a);
    *end++ = ' ';
    end = append_part(end, b);
    *out = (qn_string){ *text, (size_t)(end - *text) };
    *text = end;
    return QN_OK;
}

static qn_status write_merges(const qn_tokenizer_files *f, qn_gguf_writer *w)
{
    const json_t *merges = json_object_get(json_object_get(f->tokenizer, "model"), "merges");
    const size_t n = json_array_size(merges);
    size_t bytes = 0;
    qn_string *strings = NULL;
    char *text = NULL, *at;
    if (!n)
        return qn_fail(QN_ERR_FORMAT, "%s: the model has no merges", f->path);
    for (size_t i = 0; i < n; i++)
        for (size_t part = 0; part < 2; part++)
            bytes += 2 * json_string_length(json_array_get(json_array_get(merges, i), part)) + 1;
    qn_status status = qn_alloc(&strings, n, sizeof *strings, "merges");
    if (!status)
        status = qn_alloc(&text, bytes, 1, "merges");
    at = text;
    for (size_t i = 0; !status && i < n; i++)
        status = spell_merge(f, i, json_array_get(merges, i), &at, &strings[i]);
    if (!status)
        status = qn_gguf_writer_add_strings(w, "tokenizer.ggml.merges", strings, n);
    qn_free(strings);
    qn_free(text);
    return status;
}

/* ---- Unsupported settings ---- */

static const char *type_name(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "without a type";
}

/* Whether every byte has a token: a byte without one is dropped, but becomes unk_token if that is set. */
static bool has_all_bytes(const json_t *vocab)
{
    for (uint32_t b = 0, next = 0x100; b < 256; b++) {
        char text[5];
        const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        text[qn_utf8_encode(printable ? b : next++, text)] = '\0';
        if (!json_object_get(vocab, text))
            return false;
    }
    return true;
}

static qn_status check_model(const qn_tokenizer_files *f)
{
    static const char *const affixes[] = { "continuing_subword_prefix", "end_of_word_suffix" };
    const json_t *model = json_object_get(f->tokenizer, "model"), *vocab = json_object_get(model, "vocab");
    const char *type = json_string_value(json_object_get(model, "type")),
               *unknown = json_string_value(json_object_get(model, "unk_token"));
    if (!type || strcmp(type, "BPE") != 0)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: the tokeniser's model is '%.40s', only byte-level BPE is supported",
                       f->path, type ? type : "not named");
    if (json_is_true(json_object_get(model, "byte_fallback")))
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "%s: a tokeniser with byte_fallback (SentencePiece), only byte-level BPE is supported", f->path);
    for (size_t i = 0; i < sizeof affixes / sizeof *affixes; i++)
        if (json_string_length(json_object_get(model, affixes[i])))
            return qn_fail(QN_ERR_UNSUPPORTED, "%s: '%s' is not supported", f->path, affixes[i]);
    if (json_number_value(json_object_get(model, "dropout")) != 0)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: 'dropout' is not 0: the tokens of a text would be drawn at random",
                       f->path);
    if (unknown && json_object_get(vocab, unknown) && !has_all_bytes(vocab))
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: 'unk_token' is '%.40s' and bytes have no token, which is not supported",
                       f->path, unknown);
    return QN_OK;
}

/* Checks that the decoder only turns tokens into bytes. It may be the only part of a sequence. */
static qn_status check_decoder(const qn_tokenizer_files *f)
{
    const json_t *decoder = json_object_get(f->tokenizer, "decoder"), *parts = json_object_get(decoder, "decoders");
    if (json_array_size(parts) == 1)
        decoder = json_array_get(parts, 0);
    if (!decoder || json_is_null(decoder) || strcmp(type_name(decoder), "ByteLevel") == 0)
        return QN_OK;
    return qn_fail(QN_ERR_UNSUPPORTED, "%s: the decoder '%.40s' is not supported, only ByteLevel", f->path,
                   type_name(decoder));
}

/* Checks that at most one token is added before a text and one after it (qn_special_tokens_write). */
static qn_status check_processor(const qn_tokenizer_files *f, const json_t *processor)
{
    const char *type = type_name(processor);
    const json_t *single = json_object_get(processor, "single");
    size_t n_texts = 0, n_before = 0, n_after = 0;
    if (!processor || json_is_null(processor) || strcmp(type, "ByteLevel") == 0)
        return QN_OK;
    if (strcmp(type, "TemplateProcessing") != 0)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: the post-processor '%.40s' is not supported", f->path, type);
    for (size_t i = 0; i < json_array_size(single); i++) {
        const bool is_text = json_object_get(json_array_get(single, i), "Sequence") != NULL;
        n_texts += is_text;
        n_before += !is_text && !n_texts;
        n_after += !is_text && n_texts;
    }
    if (n_texts != 1 || n_before > 1 || n_after > 1)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "%s: the post-processor's template adds %zu tokens before a text and %zu after it, at most one "
                       "each is supported",
                       f->path, n_before, n_after);
    return QN_OK;
}

static qn_status check_processors(const qn_tokenizer_files *f)
{
    const json_t *processor = json_object_get(f->tokenizer, "post_processor");
    const json_t *parts = json_object_get(processor, "processors");
    if (!parts)
        return check_processor(f, processor);
    for (size_t i = 0; i < json_array_size(parts); i++)
        QN_TRY(check_processor(f, json_array_get(parts, i)));
    return QN_OK;
}

/* Refuses settings by which transformers changes tokenizer.json. */
static qn_status check_settings(const qn_tokenizer_files *f)
{
    static const char *const flags[] = { "add_prefix_space", "split_special_tokens" };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (json_is_true(json_object_get(f->settings, flags[i])))
            return qn_fail(QN_ERR_UNSUPPORTED, "%s/tokenizer_config.json: '%s' is true, which is not supported",
                           f->folder, flags[i]);
    return QN_OK;
}

qn_status qn_tokenizer_write(qn_tokenizer_files *f, qn_gguf_writer *w)
{
    QN_TRY(check_model(f));
    QN_TRY(check_decoder(f));
    QN_TRY(check_processors(f));
    QN_TRY(check_settings(f));
    QN_TRY(qn_gguf_writer_add_string(w, "tokenizer.ggml.model", "gpt2"));
    QN_TRY(write_pretokenizer(f, w));
    QN_TRY(write_vocabulary(f, w));
    QN_TRY(qn_token_flags_write(f, w));
    return write_merges(f, w);
}
