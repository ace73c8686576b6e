/* What a model that ranks documents has: its head, and the prompt that asks about a document. */
#ifndef QN_ENGINE_RANKING_H
#define QN_ENGINE_RANKING_H

#include "gguf/gguf.h"
#include "plan/plan.h"
#include "text/tokenizer.h"

enum { QN_RANKING_PARTS = 3 }; /* parts of the prompt: before, between and after the query and the document */

/* Constant after qn_ranking_find. */
typedef struct qn_ranking {
    const char *missing; /* why the model does not rank documents; NULL: it does. Static */
    float *head;         /* [n_labels, n_embd] */
    size_t n_labels, n_embd;
    char *text;                    /* the prompt without {query} and {document} */
    size_t ends[QN_RANKING_PARTS]; /* in text */
    bool query_first;              /* else the document is */
    bool *structural;              /* [n_vocab] tokens that the prompt has and documents cannot spell */
} qn_ranking;

/* qn_ranking_find - Reads the prompt, and decodes the head, of a file with this plan. QN_ERR_FORMAT if the head has a
 * value that is not finite; a model without a head, or whose prompt or tokeniser is missing, is not an error. Free with
 * qn_ranking_free, which accepts a zeroed struct. */
qn_status qn_ranking_find(const qn_gguf *file, const qn_plan *plan, const qn_tokenizer *tok, qn_ranking *ranking);
void qn_ranking_free(qn_ranking *ranking);

/* qn_ranking_check - QN_OK if the model ranks documents, else QN_ERR_UNSUPPORTED with the reason. */
qn_status qn_ranking_check(const qn_ranking *ranking);

/* qn_ranking_score - Returns the score of a document: the probability of the first label.
 *
 *   state   [n_embd] the hidden state of the prompt's last token, after the final norm */
float qn_ranking_score(const qn_ranking *ranking, const float *state);

#endif
