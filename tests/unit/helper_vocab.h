/* A small vocabulary as a GGUF file in memory, for tests and fuzzing: a token for every byte (its id is the byte),
 * then the results of merges, then added tokens. Optionally with faults. */
#ifndef QN_TESTS_HELPER_VOCAB_H
#define QN_TESTS_HELPER_VOCAB_H

#include "gguf/gguf.h"
#include "base/utf8.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct added_token {
    const char *text;
    int kind; /* 1 normal, 3 control, 4 user-defined */
};

struct vocab_spec {
    const char *model; /* NULL: no such key */
    const char *pre;
    const char *const *merges;       /* "left right" in the alphabet of byte-level BPE, NULL at the end */
    const struct added_token *added; /* .text NULL at the end */
    const char *chat_template;
    int bos, eos, eot;  /* 0: no such key */
    int add_bos;        /* 0: no such key, 1: false, 2: true */
    const char *id_key; /* NULL: none; else a key of this type with the low bytes of the value */
    qn_gguf_type id_type;
    size_t id_bytes;
    int64_t id_value;
    /* faults */
    bool no_tokens, no_merges, tokens_are_numbers;
    int n_missing_types;         /* number of types missing at the end */
    int omitted_byte;            /* a byte without a token; 0: none */
    const char *duplicate_token; /* text of a token that is added again */
    const char *bad_merge;
};

struct file_bytes {
    uint8_t *data;
    size_t n, capacity;
};

static inline void put_bytes(struct file_bytes *file, const void *data, size_t n)
{
    if (file->n + n > file->capacity) {
        file->capacity = 2 * (file->n + n);
        file->data = realloc(file->data, file->capacity);
        if (!file->data)
            abort();
    }
    if (n)
        memcpy(file->data + file->n, data, n);
    file->n += n;
}

static inline void put_u32(struct file_bytes *file, uint32_t value)
{
    put_bytes(file, &value, sizeof value);
}

static inline void put_u64(struct file_bytes *file, uint64_t value)
{
    put_bytes(file, &value, sizeof value);
}

static inline void put_string(struct file_bytes *file, const char *text, size_t n)
{
    put_u64(file, n);
    put_bytes(file, text, n);
}

static inline void put_key(struct file_bytes *file, uint64_t *n_keys, const char *key, qn_gguf_type type)
{
    put_string(file, key, strlen(key));
    put_u32(file, type);
    ++*n_keys;
}

static inline void put_key_string(struct file_bytes *file, uint64_t *n_keys, const char *key, const char *value)
{
    put_key(file, n_keys, key, QN_GGUF_STRING);
    put_string(file, value, strlen(value));
}

static inline void put_key_u32(struct file_bytes *file, uint64_t *n_keys, const char *key, uint32_t value)
{
    put_key(file, n_keys, key, QN_GGUF_U32);
    put_u32(file, value);
}

/* Spells a byte in byte-level BPE. src/text/vocab.c has the same rule; this follows its definition, a list. */
static inline size_t spell_byte(unsigned byte, char *out)
{
    uint32_t code = 0x100;
    for (unsigned b = 0; b <= byte; b++) {
        const bool printed = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
        if (b == byte)
            return qn_utf8_encode(printed ? b : code, out);
        code += !printed;
    }
    return 0;
}

struct token_list {
    struct file_bytes texts, kinds;
    uint32_t n;
};

static inline void add_token(struct token_list *list, const char *text, size_t n, int kind)
{
    put_string(&list->texts, text, n);
    put_u32(&list->kinds, (uint32_t)kind);
    list->n++;
}

/* make_vocab - builds the file; free its data with free(). */
static inline struct file_bytes make_vocab(const struct vocab_spec *spec)
{
    struct file_bytes keys = { 0 }, file = { 0 };
    struct token_list list = { 0 };
    uint64_t n_keys = 0;
    for (unsigned b = 0; b < 256; b++) {
        char text[4];
        const size_t n = spell_byte(b, text);
        if (spec->omitted_byte && (unsigned)spec->omitted_byte == b)
            add_token(&list, "[left out]", 10, 5);
        else
            add_token(&list, text, n, 1);
    }
    uint64_t n_merges = 0;
    struct file_bytes merges = { 0 };
    for (; spec->merges && spec->merges[n_merges]; n_merges++) {
        const char *merge = spec->merges[n_merges], *space = strchr(merge, ' ');
        struct file_bytes joined = { 0 };
        put_bytes(&joined, merge, (size_t)(space - merge));
        put_bytes(&joined, space + 1, strlen(space + 1));
        add_token(&list, (const char *)joined.data, joined.n, 1);
        free(joined.data);
        put_string(&merges, merge, strlen(merge));
    }
    if (spec->bad_merge) {
        put_string(&merges, spec->bad_merge, strlen(spec->bad_merge));
        n_merges++;
    }
    for (size_t i = 0; spec->added && spec->added[i].text; i++)
        add_token(&list, spec->added[i].text, strlen(spec->added[i].text), spec->added[i].kind);
    if (spec->duplicate_token)
        add_token(&list, spec->duplicate_token, strlen(spec->duplicate_token), 1);

    if (spec->model)
        put_key_string(&keys, &n_keys, "tokenizer.ggml.model", spec->model);
    if (spec->pre)
        put_key_string(&keys, &n_keys, "tokenizer.ggml.pre", spec->pre);
    if (!spec->no_tokens) {
        put_key(&keys, &n_keys, "tokenizer.ggml.tokens", QN_GGUF_ARRAY);
        put_u32(&keys, spec->tokens_are_numbers ? QN_GGUF_U32 : QN_GGUF_STRING);
        put_u64(&keys, list.n);
        put_bytes(&keys, spec->tokens_are_numbers ? list.kinds.data : list.texts.data,
                  spec->tokens_are_numbers ? list.kinds.n : list.texts.n);
    }
    put_key(&keys, &n_keys, "tokenizer.ggml.token_type", QN_GGUF_ARRAY);
    put_u32(&keys, QN_GGUF_I32);
    put_u64(&keys, list.n - (uint32_t)spec->n_missing_types);
    put_bytes(&keys, list.kinds.data, list.kinds.n - 4 * (size_t)spec->n_missing_types);
    if (!spec->no_merges) {
        put_key(&keys, &n_keys, "tokenizer.ggml.merges", QN_GGUF_ARRAY);
        put_u32(&keys, QN_GGUF_STRING);
        put_u64(&keys, n_merges);
        put_bytes(&keys, merges.data, merges.n);
    }
    if (spec->bos)
        put_key_u32(&keys, &n_keys, "tokenizer.ggml.bos_token_id", (uint32_t)spec->bos);
    if (spec->eos)
        put_key_u32(&keys, &n_keys, "tokenizer.ggml.eos_token_id", (uint32_t)spec->eos);
    if (spec->eot)
        put_key_u32(&keys, &n_keys, "tokenizer.ggml.eot_token_id", (uint32_t)spec->eot);
    if (spec->id_key) {
        put_key(&keys, &n_keys, spec->id_key, spec->id_type);
        put_bytes(&keys, &spec->id_value, spec->id_bytes);
    }
    if (spec->add_bos) {
        const uint8_t value = spec->add_bos == 2;
        put_key(&keys, &n_keys, "tokenizer.ggml.add_bos_token", QN_GGUF_BOOL);
        put_bytes(&keys, &value, 1);
    }
    if (spec->chat_template)
        put_key_string(&keys, &n_keys, "tokenizer.chat_template", spec->chat_template);

    put_bytes(&file, "GGUF", 4);
    put_u32(&file, 3);
    put_u64(&file, 0);
    put_u64(&file, n_keys);
    put_bytes(&file, keys.data, keys.n);
    static const uint8_t padding[32];
    put_bytes(&file, padding, (32 - file.n % 32) % 32);
    free(keys.data);
    free(merges.data);
    free(list.texts.data);
    free(list.kinds.data);
    return file;
}

/* ---- SentencePiece ---- */

struct spm_token {
    const char *text; /* NULL at the end */
    int kind;
    float score;
};

struct spm_spec {
    const struct spm_token *tokens; /* after <unk>, <s>, </s> (0 to 2) and, with_bytes, <0x00> to <0xFF> (3 to 258) */
    bool with_bytes;
    int space_prefix, remove_spaces; /* 0: no such key, 1: false, 2: true */
    const char *chat_template;
    bool no_scores;
    int n_missing_scores; /* number of scores missing at the end */
    int unknown;          /* 0: no such key */
};

static inline void put_key_bool(struct file_bytes *file, uint64_t *n_keys, const char *key, int value)
{
    const uint8_t byte = value == 2;
    put_key(file, n_keys, key, QN_GGUF_BOOL);
    put_bytes(file, &byte, 1);
}

static inline void add_scored(struct token_list *list, struct file_bytes *scores, const char *text, int kind,
                              float score)
{
    add_token(list, text, strlen(text), kind);
    put_bytes(scores, &score, sizeof score);
}

/* make_spm_vocab - builds the file; free its data with free(). */
static inline struct file_bytes make_spm_vocab(const struct spm_spec *spec)
{
    struct file_bytes keys = { 0 }, file = { 0 }, scores = { 0 };
    struct token_list list = { 0 };
    uint64_t n_keys = 0;
    add_scored(&list, &scores, "<unk>", 2, 0);
    add_scored(&list, &scores, "<s>", 3, 0);
    add_scored(&list, &scores, "</s>", 3, 0);
    for (unsigned b = 0; spec->with_bytes && b < 256; b++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", b);
        add_scored(&list, &scores, text, 6, 0);
    }
    for (const struct spm_token *t = spec->tokens; t && t->text; t++)
        add_scored(&list, &scores, t->text, t->kind, t->score);
    put_key_string(&keys, &n_keys, "tokenizer.ggml.model", "llama");
    put_key(&keys, &n_keys, "tokenizer.ggml.tokens", QN_GGUF_ARRAY);
    put_u32(&keys, QN_GGUF_STRING);
    put_u64(&keys, list.n);
    put_bytes(&keys, list.texts.data, list.texts.n);
    put_key(&keys, &n_keys, "tokenizer.ggml.token_type", QN_GGUF_ARRAY);
    put_u32(&keys, QN_GGUF_I32);
    put_u64(&keys, list.n);
    put_bytes(&keys, list.kinds.data, list.kinds.n);
    if (!spec->no_scores) {
        put_key(&keys, &n_keys, "tokenizer.ggml.scores", QN_GGUF_ARRAY);
        put_u32(&keys, QN_GGUF_F32);
        put_u64(&keys, list.n - (uint32_t)spec->n_missing_scores);
        put_bytes(&keys, scores.data, scores.n - 4 * (size_t)spec->n_missing_scores);
    }
    if (spec->space_prefix)
        put_key_bool(&keys, &n_keys, "tokenizer.ggml.add_space_prefix", spec->space_prefix);
    if (spec->remove_spaces)
        put_key_bool(&keys, &n_keys, "tokenizer.ggml.remove_extra_whitespaces", spec->remove_spaces);
    if (spec->unknown)
        put_key_u32(&keys, &n_keys, "tokenizer.ggml.unknown_token_id", (uint32_t)spec->unknown);
    if (spec->chat_template)
        put_key_string(&keys, &n_keys, "tokenizer.chat_template", spec->chat_template);
    put_bytes(&file, "GGUF", 4);
    put_u32(&file, 3);
    put_u64(&file, 0);
    put_u64(&file, n_keys);
    put_bytes(&file, keys.data, keys.n);
    static const uint8_t padding[32];
    put_bytes(&file, padding, (32 - file.n % 32) % 32);
    free(keys.data);
    free(scores.data);
    free(list.texts.data);
    free(list.kinds.data);
    return file;
}

#endif
