/* A vocabulary: the tokens of a file, their types and bytes, and look-up. Each token has a text, as spelled in the
 * file, and a piece, the bytes that the text encodes. */
#ifndef QN_TEXT_VOCAB_H
#define QN_TEXT_VOCAB_H

#include "gguf/gguf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Token types, with the numbers of tokenizer.ggml.token_type. */
typedef enum qn_token_type {
    QN_TOKEN_UNDEFINED = 0,
    QN_TOKEN_NORMAL,
    QN_TOKEN_UNKNOWN,
    QN_TOKEN_CONTROL,
    QN_TOKEN_USER_DEFINED,
    QN_TOKEN_UNUSED,
    QN_TOKEN_BYTE
} qn_token_type;

/* How texts spell pieces.
 *
 *   BYTE_LEVEL      every byte is a printable character (GPT-2's bytes_to_unicode)
 *   SENTENCEPIECE   U+2581 is a space; tokens of type byte are <0x00> to <0xFF>
 *
 * Control, unknown and user-defined tokens are spelled as they are in both. */
typedef enum qn_spelling { QN_SPELLING_BYTE_LEVEL, QN_SPELLING_SENTENCEPIECE } qn_spelling;

/* Special tokens with longer names are not found in texts. */
enum { QN_SPECIAL_BYTES = 255 };

typedef struct qn_vocab {
    qn_spelling spelling;
    size_t n_tokens;
    char *texts;             /* concatenated texts, as spelled in the file */
    uint32_t *text_offsets;  /* [n_tokens + 1] */
    char *pieces;            /* concatenated pieces */
    uint32_t *piece_offsets; /* [n_tokens + 1] */
    uint8_t *token_types;    /* [n_tokens] qn_token_type */
    uint32_t *slots;         /* hash table by text: id + 1, or 0 for an empty slot */
    size_t slot_mask;
    uint32_t *special_tokens; /* [n_special_tokens] ids of control, unknown and user-defined tokens, sorted by text */
    size_t n_special_tokens;
    bool special_first_bytes[256];   /* first bytes of their texts */
    uint16_t byte_to_codepoint[256]; /* BYTE_LEVEL: the character that encodes a byte */
    int32_t byte_to_token[256];      /* the token of a single byte, or -1 */
    size_t n_repeated;               /* tokens with the same text as an earlier token */
    uint32_t repeated[2];            /* the first such pair: the earlier token, then the later one */
} qn_vocab;

/* qn_vocab_load - reads tokenizer.ggml.tokens and tokenizer.ggml.token_type.
 *
 *   vocab      zeroed; free it with qn_vocab_free, even after an error
 *   spelling   of the tokens' texts
 *
 * Of tokens with the same text, look-up returns the first; all can be decoded. QN_ERR_FORMAT for arrays that are
 * missing, of the wrong type or of different lengths, and for an unknown token type. */
qn_status qn_vocab_load(qn_vocab *vocab, const qn_gguf *file, qn_spelling spelling);
void qn_vocab_free(qn_vocab *vocab);

/* qn_vocab_find - the token with a text, or -1. */
int32_t qn_vocab_find(const qn_vocab *vocab, const char *text, size_t length);

/* qn_vocab_find_bytes - the normal token with a piece, or -1; of a byte-level vocabulary. Pieces of more than 256 bytes
 * are not found. */
int32_t qn_vocab_find_bytes(const qn_vocab *vocab, const char *bytes, size_t length);

/* qn_vocab_special_at - the longest special token at the beginning of a text, or -1.
 *
 *   control   false: only user-defined tokens; true: also control and unknown tokens
 *   without   [n_tokens] tokens to ignore; NULL: none
 *   match     length of the token's text in bytes, written if there is one */
int32_t qn_vocab_special_at(const qn_vocab *vocab, const char *text, size_t length, bool control, const bool *without,
                            size_t *match);

/* qn_vocab_is_control - whether a token is a control or unknown token, which plain text must not become. The token
 * must be in the vocabulary. */
static inline bool qn_vocab_is_control(const qn_vocab *vocab, int32_t token)
{
    return vocab->token_types[token] == QN_TOKEN_CONTROL || vocab->token_types[token] == QN_TOKEN_UNKNOWN;
}

/* qn_vocab_text - the text of a token, which must be in the vocabulary. */
static inline qn_string qn_vocab_text(const qn_vocab *vocab, uint32_t token)
{
    return (qn_string){ vocab->texts + vocab->text_offsets[token],
                        vocab->text_offsets[token + 1] - vocab->text_offsets[token] };
}

/* qn_vocab_piece - the piece of a token, which must be in the vocabulary. */
static inline qn_string qn_vocab_piece(const qn_vocab *vocab, uint32_t token)
{
    return (qn_string){ vocab->pieces + vocab->piece_offsets[token],
                        vocab->piece_offsets[token + 1] - vocab->piece_offsets[token] };
}

#endif
