/* Tokenisers: text to token ids and back, for byte-level BPE ("gpt2") with the pre-tokenisers of pretokenize.h, and for
 * SentencePiece models of type BPE ("llama", spm.h).
 *
 * A text is split at special tokens. In byte-level BPE the text between them is normalised to Unicode form C, if the
 * tokeniser does so, split by the pre-tokeniser, and merged. Bytes that are not valid UTF-8 are kept: each run of them
 * is a separate piece. So the concatenated pieces of the tokens are the text (in form C for qwen2 and qwen35), if the
 * vocabulary has a token for every byte. A byte without a token is dropped, as in Hugging Face's tokenisers (SmolLM2
 * lacks 21 bytes: those that UTF-8 does not use, F1, F2 and six control characters).
 *
 * A SentencePiece model puts a space before the text, and before text after special tokens, unless its file says
 * otherwise; the concatenated pieces have these spaces. A character without a token becomes byte tokens, or the unknown
 * token if the vocabulary has none.
 *
 * A tokeniser is immutable and independent of the file; any number of threads may use it. */
#ifndef QN_TEXT_TOKENIZER_H
#define QN_TEXT_TOKENIZER_H

#include "gguf/gguf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct qn_tokenizer qn_tokenizer;

/* Quern's own keys, where GGUF has none. A file has one only if it adds information.
 *
 *   EOS_IDS         array: the ids that end generation, if a checkpoint lists several
 *   LSTRIP_IDS      array: tokens that absorb the white space before them, as `lstrip` of Hugging Face's tokenizers
 *   RSTRIP_IDS      array: the same for the white space after them
 *   NFC             bool: whether text is normalised to form C; without it the pre-tokeniser's name decides
 *   IGNORE_MERGES   bool: whether a piece that is a token becomes that token without merging; otherwise as NFC */
#define QN_KEY_EOS_IDS "quern.tokenizer.eos_token_ids"
#define QN_KEY_LSTRIP_IDS "quern.tokenizer.lstrip_token_ids"
#define QN_KEY_RSTRIP_IDS "quern.tokenizer.rstrip_token_ids"
#define QN_KEY_NFC "quern.tokenizer.nfc"
#define QN_KEY_IGNORE_MERGES "quern.tokenizer.ignore_merges"

/* qn_tokenizer_create - creates the tokeniser described by a file's tokenizer.ggml.* keys.
 *
 *   out   free it with qn_tokenizer_free
 *
 * Without tokenizer.ggml.pre the pre-tokeniser is "default"; SentencePiece models have none. Their beginning-of-text
 * and end-of-text tokens are 1 and 2 in a file without these keys. A special token id of -1, as a signed or an unsigned
 * integer, means that there is no such token. Of tokens with the same text the first is used.
 *
 * QN_ERR_UNSUPPORTED   the file has no tokeniser (no tokenizer.ggml.model, or "no_vocab"), an unsupported tokeniser
 *                      model or an unsupported pre-tokeniser
 * QN_ERR_FORMAT        arrays are missing or of different lengths, merges are malformed or contain unknown tokens,
 *                      or ids are outside the vocabulary */
qn_status qn_tokenizer_create(const qn_gguf *file, qn_tokenizer **out);
void qn_tokenizer_free(qn_tokenizer *tok);

/* qn_tokenizer_encode - tokenises a text.
 *
 *   text            [length] any bytes
 *   length          at most 2^31-1, else QN_ERR_INVALID
 *   parse_special   true: control tokens spelled in the text become their ids; user-defined tokens always do
 *   add_bos         true: put the beginning-of-text token first, if the model uses one
 *   tokens          [*count] free them with free(). Not NULL on success, even with a count of 0
 *   count           number of tokens
 *
 * Time is O(n log n) in the length. Special tokens whose names have more than 255 bytes are not found. A piece of
 * the pre-tokeniser longer than 256 KiB, which no word is, is tokenised in parts of at most 256 KiB. */
qn_status qn_tokenizer_encode(const qn_tokenizer *tok, const char *text, size_t length, bool parse_special,
                              bool add_bos, int32_t **tokens, size_t *count);

/* A part of a text up to byte `end`; the next one begins there. */
typedef struct qn_text_span {
    size_t end;
    bool parse_special; /* control and structural tokens spelled in it become their ids */
} qn_text_span;

typedef struct qn_spanned_text {
    const char *text;
    size_t length;
    const qn_text_span *spans; /* [n_spans] ascending; the last one ends at `length` */
    size_t n_spans;
    const bool *structural; /* [n_vocab] user-defined tokens that are found like control tokens; NULL: none */
    bool continues;         /* the text follows other text: no space is put before it */
} qn_spanned_text;

/* qn_tokenizer_encode_rest - as qn_tokenizer_encode without a beginning-of-text token, for a text that follows other
 * text: no space is put before it. */
qn_status qn_tokenizer_encode_rest(const qn_tokenizer *tok, const char *text, size_t length, bool parse_special,
                                   int32_t **tokens, size_t *count);

/* qn_tokenizer_encode_spans - tokenises a text in spans. Control and structural tokens are found if they lie within one
 * span that has parse_special. Everything else is tokenised as if there were no spans, also across their ends.
 *
 *   most   the greatest number of tokens to return; `count` is the number of all
 *
 * Otherwise as qn_tokenizer_encode. */
qn_status qn_tokenizer_encode_spans(const qn_tokenizer *tok, const qn_spanned_text *text, size_t most, int32_t **tokens,
                                    size_t *count);

/* qn_tokenizer_least_tokens - returns a number of tokens that every text of this many bytes has at least: without
 * tokenising it, and often far fewer than it has. 0 if there is no bound, as for SentencePiece models, for vocabularies
 * that lack bytes, and for tokens that absorb white space. Constant time. */
size_t qn_tokenizer_least_tokens(const qn_tokenizer *tok, size_t length);

/* qn_tokenizer_mark_structural - marks the user-defined tokens that occur in a text of a chat template. White space and
 * single bytes, which any text may contain, are not marked.
 *
 *   structural   [n_vocab] */
void qn_tokenizer_mark_structural(const qn_tokenizer *tok, const char *text, size_t length, bool *structural);

/* qn_tokenizer_piece - the bytes of a token: not terminated, possibly part of a character. For a special token, its
 * name. Owned by the tokeniser. QN_ERR_INVALID for an id outside the vocabulary. */
qn_status qn_tokenizer_piece(const qn_tokenizer *tok, int32_t token, const char **bytes, size_t *length);

/* qn_tokenizer_is_special - whether a token is a control token, which is not part of displayed text. False outside
 * the vocabulary. */
bool qn_tokenizer_is_special(const qn_tokenizer *tok, int32_t token);

/* qn_tokenizer_is_eog - whether a token ends generation: the file's end tokens, and control and user-defined tokens
 * with names that are usual for end tokens. False outside the vocabulary. */
bool qn_tokenizer_is_eog(const qn_tokenizer *tok, int32_t token);

/* qn_tokenizer_n_vocab - the number of tokens. */
size_t qn_tokenizer_n_vocab(const qn_tokenizer *tok);

/* qn_tokenizer_bos - the beginning-of-text token, or -1. */
int32_t qn_tokenizer_bos(const qn_tokenizer *tok);

/* qn_tokenizer_eos - the end-of-text token, or -1. */
int32_t qn_tokenizer_eos(const qn_tokenizer *tok);

/* qn_tokenizer_adds_bos - whether add_bos of qn_tokenizer_encode adds a token. */
bool qn_tokenizer_adds_bos(const qn_tokenizer *tok);

/* qn_tokenizer_adds_eos - whether texts of embeddings end with the end-of-text token. */
bool qn_tokenizer_adds_eos(const qn_tokenizer *tok);

/* qn_tokenizer_read_id - reads a token id from a key: *out is -1 if the key is missing or its value means no token.
 * QN_ERR_FORMAT: the id is outside the vocabulary. */
qn_status qn_tokenizer_read_id(const qn_tokenizer *tok, const qn_gguf *file, const char *key, int32_t *out);

/* qn_tokenizer_find - the special token with a name ("<|im_end|>"), or -1. */
int32_t qn_tokenizer_find(const qn_tokenizer *tok, const char *name);

/* qn_tokenizer_note - a log message about tokens with the same text, or NULL. Owned by the tokeniser. */
const char *qn_tokenizer_note(const qn_tokenizer *tok);

/* qn_tokenizer_name - the model and, of byte-level BPE, the pre-tokeniser: "gpt2/qwen2", "llama". Owned by the
 * tokeniser. */
const char *qn_tokenizer_name(const qn_tokenizer *tok);

#endif
