/* Shared by the two ways to score a text: perplexity.c, alone, and divergence.c, against a base. */
#ifndef QN_CLI_PERPLEXITY_H
#define QN_CLI_PERPLEXITY_H

#include "cli/cli.h"

enum { QN_SCORED_ROWS = 64 }; /* of logits held at once: 40 MB for the largest vocabularies */

typedef struct qn_scored_text {
    qn_token *tokens, *begin; /* begin: the beginning-of-text token, if n_begin > 0; free both with qn_free_tokens */
    size_t count, n_begin;
} qn_scored_text;

/* ---- scored_text.c ---- */

/* qn_read_scored_text - tokenise args->file, at least args->context tokens. Returns as qn_load_model; the caller frees
 * the tokens in any case. */
int qn_read_scored_text(const qn_args *args, qn_model *model, qn_scored_text *text);

/* ---- divergence.c ---- */

/* qn_measure_divergence - `quern perplexity --kl-divergence`. Returns the exit status. */
int qn_measure_divergence(qn_args *args);

#endif
