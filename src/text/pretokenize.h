/* Pre-tokenisers: where a text is cut before the tokens of a piece are merged, and what goes with each way of cutting. */
#ifndef QN_TEXT_PRETOKENIZE_H
#define QN_TEXT_PRETOKENIZE_H

#include "gguf/gguf.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct qn_pretokenizer qn_pretokenizer;

/* qn_pretokenizer_create - the pre-tokeniser of this name, as tokenizer.ggml.pre has it. QN_ERR_UNSUPPORTED naming it and those
 * that there are. Free with qn_pretokenizer_free; does not change, so that any number of threads may use it. */
qn_status qn_pretokenizer_create(qn_string name, qn_pretokenizer **out);
void qn_pretokenizer_free(qn_pretokenizer *pre);

const char *qn_pretokenizer_name(const qn_pretokenizer *pre);
/* Whether a text is brought to Unicode's form C first. */
bool qn_pretokenizer_normalizes(const qn_pretokenizer *pre);
/* Whether a piece that is a token as a whole is taken as that, whatever the merges say. */
bool qn_pretokenizer_ignores_merges(const qn_pretokenizer *pre);
/* Whether a beginning-of-text token is added where the file does not say. */
bool qn_pretokenizer_adds_bos(const qn_pretokenizer *pre);

/* What one thread needs to match. */
typedef struct qn_matcher qn_matcher;
qn_status qn_matcher_create(qn_matcher **out);
void qn_matcher_free(qn_matcher *matcher);

typedef qn_status (*qn_piece_fn)(void *user, const char *piece, size_t length);

/* qn_pretokenize - cut text[0..length), which must be valid UTF-8, and hand over its pieces from left to right; together they
 * are the text. A failure of `emit` ends it and is returned. Takes linear time. */
qn_status qn_pretokenize(const qn_pretokenizer *pre, qn_matcher *matcher, const char *text, size_t length, qn_piece_fn emit,
                         void *user);

#endif
