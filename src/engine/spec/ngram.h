/* Look-up of the longest end of a text that occurred before, and the tokens that followed it there: an index of
 * n-grams. Also the drafter "ngram", which proposes these tokens, from its request's own prompt and answer and from
 * answers that other requests of the same scope wrote. */
#ifndef QN_ENGINE_SPEC_NGRAM_H
#define QN_ENGINE_SPEC_NGRAM_H

#include "engine/spec/drafter.h"

/* ---- The index ---- */

/* Texts of tokens, each with an owner, of which the last ones up to a limit are kept. */
typedef struct qn_ngrams qn_ngrams;

/* Where the end of a text occurred. */
typedef struct qn_ngram_match {
    size_t length; /* tokens that are equal, at most QN_NGRAM_LONGEST; 0: none were found */
    uint32_t end;  /* number of the token that followed */
} qn_ngram_match;

/* Memory of a token in an index, at most twice that while it grows. */
enum { QN_NGRAM_TOKEN_BYTES = 24 };

/* Matches of fewer tokens than QN_NGRAM_SHORTEST are not found. */
enum { QN_NGRAM_SHORTEST = 2, QN_NGRAM_LONGEST = 32 };

/* qn_ngrams_create - creates an index without texts. limit: the most tokens that it keeps, a power of two from 16 to
 * 2^30. Memory grows with the tokens. Free with qn_ngrams_free; NULL is allowed. */
qn_status qn_ngrams_create(size_t limit, qn_ngrams **out);
void qn_ngrams_free(qn_ngrams *index);

/* qn_ngrams_add - appends tokens to the last text. QN_ERR_MEMORY leaves the index as it was. */
qn_status qn_ngrams_add(qn_ngrams *index, uint32_t owner, const qn_token *tokens, size_t n);

/* qn_ngrams_end - ends the last text: n-grams do not cross its end. The memory for it was reserved with the text. */
void qn_ngrams_end(qn_ngrams *index);

/* qn_ngrams_find - finds the longest match of the end of `text` [n] in texts of the owner; of equally long ones the
 * last. Where the text is itself the last of the index, its end is not found there. Looks at a bounded number of
 * places. */
qn_ngram_match qn_ngrams_find(const qn_ngrams *index, uint32_t owner, const qn_token *text, size_t n);

/* qn_ngrams_read - writes at most k tokens that followed a match, which is of the current index, up to the end of its
 * text. Where the last text ends, the tokens continue with the first ones written, as a loop does. Returns their
 * number. */
size_t qn_ngrams_read(const qn_ngrams *index, qn_ngram_match match, size_t k, qn_token *out);

/* qn_ngrams_bytes - returns the number of bytes of memory that the index uses. */
size_t qn_ngrams_bytes(const qn_ngrams *index);

/* ---- Answers of other requests ---- */

/* Answers by scope, of which the last ones are kept, within a limit for all scopes. Scopes are compared by their names,
 * and a request finds answers of its own scope only; none of the scope "", which strangers may share: whether a token
 * is drafted reveals whether it follows in an answer. Used by one thread at a time. */
typedef struct qn_written qn_written;

/* qn_written_create - creates a store without answers. Free with qn_written_free, after all drafters that use it; NULL
 * is allowed. */
qn_status qn_written_create(qn_written **out);
void qn_written_free(qn_written *written);

/* qn_written_add - adds an answer. Those of the scope "" or NULL are not kept. Without memory the
 * answer is left out. */
void qn_written_add(qn_written *written, const char *scope, const qn_token *tokens, size_t n);

/* ---- The drafter ---- */

/* qn_ngram_create - creates a drafter of one request. written: NULL, or answers of others, which the drafter reads;
 * they must outlive it. Of the scope "" or NULL it reads none. */
qn_status qn_ngram_create(const qn_written *written, const char *scope, qn_drafter **out);

/* qn_ngram_chances - what is expected of its tokens by their classes, before anything was measured. */
extern const float qn_ngram_chances[QN_DRAFT_CLASSES];

/* qn_ngram_bytes - returns the memory of a drafter's index after a text of n tokens. */
size_t qn_ngram_bytes(size_t n);

#endif
