/* Tokenisers: text to token ids and back, for byte-level BPE ("gpt2") with the pre-tokenisers of pretokenize.h.
 *
 * A text is cut at special tokens; what lies between is brought to Unicode's form C where the tokeniser has that, cut by the
 * pre-tokeniser and merged. Bytes that are not UTF-8 stay what they are: each run of them is a piece of its own. So the pieces
 * of the tokens, one after the other, are the text (in form C, for qwen2 and qwen35), for every vocabulary that has a token for
 * every byte. A byte without one is left out, as Hugging Face's tokenisers do (SmolLM2 lacks 21 bytes: those that UTF-8 never
 * uses, F1, F2 and six control characters).
 *
 * A tokeniser does not change and keeps nothing of the file; any number of threads may use it. */
#ifndef QN_TEXT_TOKENIZER_H
#define QN_TEXT_TOKENIZER_H

#include "gguf/gguf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct qn_tokenizer qn_tokenizer;

/* qn_tokenizer_create - the tokeniser that a file describes in its tokenizer.ggml.* keys; owned by the caller.
 *
 * QN_ERR_UNSUPPORTED, each with its own text: the file has none (no tokenizer.ggml.model, or "no_vocab"), has one of another
 * model, or with a pre-tokeniser that is not known. A file that names no pre-tokeniser gets "default". QN_ERR_FORMAT for a
 * broken one: arrays missing or of different lengths, merges that do not parse or name no token, ids outside. A special id of
 * -1, or of 32 bits that are all ones, means that there is none. Of tokens that are spelled alike the first is used. */
qn_status qn_tokenizer_create(const qn_gguf *file, qn_tokenizer **out);
void qn_tokenizer_free(qn_tokenizer *tok);

/* qn_tokenizer_encode - the tokens of text[0..length), any bytes, at most 2^31-1 of them.
 *
 *   parse_special  whether control tokens spelled in the text are taken as those; user-defined ones always are
 *   add_bos        whether the beginning-of-text token goes first, where the model asks for one
 *   tokens         [*count] owned by the caller: free(). Never NULL on success, also for no tokens
 *
 * Takes n log n time in the length. QN_ERR_INVALID for a text that is too long. */
qn_status qn_tokenizer_encode(const qn_tokenizer *tok, const char *text, size_t length, bool parse_special, bool add_bos,
                              int32_t **tokens, size_t *count);

/* qn_tokenizer_piece - the bytes that a token stands for, not terminated, possibly part of a character; special tokens give
 * their name. Owned by the tokeniser. QN_ERR_INVALID for an id outside the vocabulary. */
qn_status qn_tokenizer_piece(const qn_tokenizer *tok, int32_t token, const char **bytes, size_t *length);

/* Whether it is a control token, which text does not show; whether generation ends at it. False outside the vocabulary. */
bool qn_tokenizer_is_special(const qn_tokenizer *tok, int32_t token);
bool qn_tokenizer_is_eog(const qn_tokenizer *tok, int32_t token);

size_t qn_tokenizer_n_vocab(const qn_tokenizer *tok);
/* The tokens that begin and end a text; -1 where the file names none. */
int32_t qn_tokenizer_bos(const qn_tokenizer *tok);
int32_t qn_tokenizer_eos(const qn_tokenizer *tok);

/* qn_tokenizer_find - the special token of this name ("<|im_end|>"), or -1. */
int32_t qn_tokenizer_find(const qn_tokenizer *tok, const char *name);

/* qn_tokenizer_note - NULL, or one sentence for the log on tokens that are spelled alike. Owned by the tokeniser. */
const char *qn_tokenizer_note(const qn_tokenizer *tok);

/* qn_tokenizer_name - model and pre-tokeniser: "gpt2/qwen2". Owned by the tokeniser. */
const char *qn_tokenizer_name(const qn_tokenizer *tok);

#endif
