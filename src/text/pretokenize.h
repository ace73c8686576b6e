/* Pre-tokenisers: they split a text into pieces (pre-tokens), which are merged separately. Each has further
 * properties. */
#ifndef QN_TEXT_PRETOKENIZE_H
#define QN_TEXT_PRETOKENIZE_H

#include "gguf/gguf.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct qn_pretokenizer qn_pretokenizer;

/* qn_pretokenizer_create - creates the pre-tokeniser with a name (tokenizer.ggml.pre). It is immutable: any number of
 * threads may use it.
 *
 *   out   free it with qn_pretokenizer_free
 *
 * QN_ERR_UNSUPPORTED, with the supported names, for an unknown name. */
qn_status qn_pretokenizer_create(qn_string name, qn_pretokenizer **out);
void qn_pretokenizer_free(qn_pretokenizer *pre);

/* qn_pretokenizer_name - its canonical name. A static string. */
const char *qn_pretokenizer_name(const qn_pretokenizer *pre);

/* qn_pretokenizer_normalizes - whether text is normalised to Unicode form C first. */
bool qn_pretokenizer_normalizes(const qn_pretokenizer *pre);

/* qn_pretokenizer_ignores_merges - whether a piece that is a token becomes that token without merging
 * (ignore_merges). */
bool qn_pretokenizer_ignores_merges(const qn_pretokenizer *pre);

/* qn_pretokenizer_adds_bos - whether a beginning-of-text token is added if the file has no add_bos_token. */
bool qn_pretokenizer_adds_bos(const qn_pretokenizer *pre);

/* The matching state of one thread. */
typedef struct qn_matcher qn_matcher;
qn_status qn_matcher_create(qn_matcher **out);
void qn_matcher_free(qn_matcher *matcher);

/* Receives one piece. */
typedef qn_status (*qn_piece_fn)(void *user, const char *piece, size_t length);

/* qn_pretokenize - splits a text.
 *
 *   text   [length] valid UTF-8
 *   emit   called with each piece, from left to right; the concatenated pieces are the text. If it returns a status
 *          other than QN_OK, the function stops and returns it
 *   user   passed to emit
 *
 * Time is linear in the length. */
qn_status qn_pretokenize(const qn_pretokenizer *pre, qn_matcher *matcher, const char *text, size_t length,
                         qn_piece_fn emit, void *user);

#endif
