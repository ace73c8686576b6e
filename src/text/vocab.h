/* A vocabulary: the tokens of a file, their kinds and bytes, and the ways to find one. Byte-level BPE writes every byte as a
 * printable character; here both sides of that are kept: the text as the file spells it and the bytes that it stands for.
 * Merging is bpe.h's. */
#ifndef QN_TEXT_VOCAB_H
#define QN_TEXT_VOCAB_H

#include "gguf/gguf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a token is, with the numbers of tokenizer.ggml.token_type. */
typedef enum qn_token_type {
    QN_TOKEN_UNDEFINED = 0,
    QN_TOKEN_NORMAL,
    QN_TOKEN_UNKNOWN,
    QN_TOKEN_CONTROL,
    QN_TOKEN_USER_DEFINED,
    QN_TOKEN_UNUSED,
    QN_TOKEN_BYTE
} qn_token_type;

typedef struct qn_vocab {
    size_t n_tokens;
    char *texts;             /* as the file spells them, one after the other */
    uint32_t *text_offsets;  /* [n_tokens + 1] */
    char *pieces;            /* the bytes that they stand for */
    uint32_t *piece_offsets; /* [n_tokens + 1] */
    uint8_t *token_types;    /* [n_tokens] qn_token_type */
    uint32_t *slots;         /* hash of texts: id + 1, or 0 for a free slot */
    size_t slot_mask;
    uint32_t *special_tokens; /* [n_special_tokens] ids of control and user-defined tokens, by their text */
    size_t n_special_tokens;
    bool special_first_bytes[256];   /* bytes with which one of those begins */
    uint16_t byte_to_codepoint[256]; /* the character that spells a byte */
    int32_t byte_to_token[256];      /* the token of a single byte, or -1 */
    size_t n_repeated;               /* tokens that are spelled like an earlier one */
    uint32_t repeated[2];            /* the first of those, after the one that it is spelled like */
} qn_vocab;

/* qn_vocab_load - read tokenizer.ggml.tokens and .token_type. *vocab must be zeroed; it is to be freed also after a failure.
 * QN_ERR_FORMAT for arrays that are missing, of the wrong type or of different lengths, or an unknown kind. Of tokens that are
 * spelled alike the first is found; the others can be decoded. */
qn_status qn_vocab_load(qn_vocab *vocab, const qn_gguf *file);
void qn_vocab_free(qn_vocab *vocab);

/* qn_vocab_find - the token that the file spells this way, or -1. */
int32_t qn_vocab_find(const qn_vocab *vocab, const char *text, size_t length);

/* qn_vocab_find_bytes - the normal token that stands for these bytes, or -1. */
int32_t qn_vocab_find_bytes(const qn_vocab *vocab, const char *bytes, size_t length);

/* qn_vocab_special_at - the longest special token with which the text begins, its length in *match; -1 for none. User-defined
 * tokens always count, control tokens with `control`. */
int32_t qn_vocab_special_at(const qn_vocab *vocab, const char *text, size_t length, bool control, size_t *match);

/* qn_vocab_is_control - whether the token is one that no text may spell by itself. `token` must be in the vocabulary. */
static inline bool qn_vocab_is_control(const qn_vocab *vocab, int32_t token)
{
    return vocab->token_types[token] == QN_TOKEN_CONTROL || vocab->token_types[token] == QN_TOKEN_UNKNOWN;
}

/* The text or the bytes of a token of the vocabulary. */
static inline qn_string qn_vocab_text(const qn_vocab *vocab, uint32_t token)
{
    return (qn_string){ vocab->texts + vocab->text_offsets[token],
                        vocab->text_offsets[token + 1] - vocab->text_offsets[token] };
}

static inline qn_string qn_vocab_piece(const qn_vocab *vocab, uint32_t token)
{
    return (qn_string){ vocab->pieces + vocab->piece_offsets[token],
                        vocab->piece_offsets[token + 1] - vocab->piece_offsets[token] };
}

#endif
