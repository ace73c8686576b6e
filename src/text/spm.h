/* SentencePiece models of type BPE (tokenizer.ggml.model "llama"): characters are merged to the token with the highest
 * score, from anywhere in the text. Spaces are spelled U+2581 in tokens; characters without a token become byte tokens,
 * or the unknown token. The vocabulary is vocab.h's. */
#ifndef QN_TEXT_SPM_H
#define QN_TEXT_SPM_H

#include "text/vocab.h"

/* Longer tokens are not merged to, which bounds the time for each byte of text. SentencePiece trains tokens of at most
 * 512 characters, and of 16 unless asked for more. */
enum { QN_SPM_MAX_PIECE = 1024 };

typedef struct qn_spm {
    float *scores;      /* [n_tokens] */
    uint64_t *adjacent; /* a set of pairs of neighbouring characters of tokens, as bits of hashes */
    size_t longest;     /* bytes of the longest token that is merged to */
    int32_t unknown;    /* the token for characters without token and bytes, or -1 */
    bool space_prefix, remove_extra_spaces;
} qn_spm;

/* qn_spm_load - reads tokenizer.ggml.scores (without it, all scores are equal), unknown_token_id (by default the token
 * of type unknown), add_space_prefix (true by default) and remove_extra_whitespaces (false by default).
 *
 *   spm   zeroed; free it with qn_spm_free, even after an error
 *
 * QN_ERR_FORMAT for scores that are not finite numbers, one for each token, and for an unknown token outside the
 * vocabulary. */
qn_status qn_spm_load(qn_spm *spm, const qn_vocab *vocab, const qn_gguf *file);
void qn_spm_free(qn_spm *spm);

/* Scratch memory of one thread; grows with the longest text. Zero it before use; free it with qn_spm_scratch_free. */
typedef struct qn_spm_scratch {
    char *text;
    size_t text_capacity;
    struct qn_spm_symbol *symbols;
    size_t symbols_capacity;
    struct qn_spm_pair *heap;
    size_t heap_capacity;
} qn_spm_scratch;

void qn_spm_scratch_free(qn_spm_scratch *scratch);

/* A text between special tokens, or all of it. */
typedef struct qn_spm_text {
    const char *text; /* [length] any bytes; those that are no UTF-8 become byte tokens one by one */
    size_t length;
    bool begins, ends;   /* whether it is at the beginning or the end of the whole text */
    bool prefixed;       /* whether a space is put before it if the model does so */
    const bool *without; /* [n_tokens] tokens that no merge may produce; NULL: none */
} qn_spm_text;

/* qn_spm_encode - tokenises a text.
 *
 *   emit   called with each token, from left to right; if it returns a status other than QN_OK, the function stops and
 *          returns it
 *   user   passed to emit
 *
 * Control, unknown and byte tokens spelled in the text are text. Time is O(n log n). A run of more than 256 KiB that no
 * pair of characters outside the vocabulary's tokens divides is tokenised in parts. */
qn_status qn_spm_encode(const qn_spm *spm, const qn_vocab *vocab, qn_spm_scratch *scratch, const qn_spm_text *text,
                        qn_status (*emit)(void *user, int32_t token), void *user);

#endif
