/* The grammars of a model: a cache of compiled grammars, and the vocabulary as tries, built for the first request with
 * a grammar. All functions but qn_grammars_free may be called from any thread. grammar/ compiles grammars and makes
 * masks. */
#ifndef QN_ENGINE_GRAMMARS_H
#define QN_ENGINE_GRAMMARS_H

#include "grammar/grammar.h"

/* Limits of the cache. A grammar of more than an eighth of the bytes is not cached. */
enum { QN_KEPT_GRAMMARS = 256, QN_KEPT_GRAMMAR_BYTES = 64 << 20 };

typedef struct qn_grammars qn_grammars;

qn_status qn_grammars_create(qn_grammars **out);
void qn_grammars_free(qn_grammars *grammars);

/* qn_grammars_vocab - Returns the vocabulary of the model's tokeniser and output, owned by `grammars` and valid as long
 * as they are. The first call builds it; threads that call this meanwhile wait. */
qn_status qn_grammars_vocab(qn_grammars *grammars, const qn_tokenizer *tokenizer, const qn_output_params *output,
                            qn_grammar_vocab **out);

typedef struct qn_grammar_counts {
    size_t n, bytes;          /* cached now, including the texts used as keys */
    uint64_t found, compiled; /* since the model was loaded */
} qn_grammar_counts;

qn_grammar_counts qn_grammars_count(qn_grammars *grammars);

#endif
