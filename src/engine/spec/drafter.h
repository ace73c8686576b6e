/* Drafters: they propose tokens that may follow a text. A step evaluates the proposed tokens as rows after the last
 * token, samples at each of them, and keeps the tokens up to the first that is not the sampled one (scheduler/draft.h).
 * So a drafter changes the speed of an answer only. A drafter belongs to one request and is used by one thread at a
 * time. */
#ifndef QN_ENGINE_SPEC_DRAFTER_H
#define QN_ENGINE_SPEC_DRAFTER_H

#include "base/status.h"
#include "quern/quern.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Most tokens of a draft. */
enum { QN_DRAFT_TOKENS = 15 };

/* Classes of proposed tokens. Tokens of one class are accepted about equally often. Those of a draft model begin at
 * QN_DRAFT_MODEL_CLASS; the ones before it are those of a drafter. */
enum { QN_DRAFT_CLASSES = 16, QN_DRAFT_MODEL_CLASS = 8 };

/* Tokens that may follow a text. The proposal is deterministic: a drafter that draws its tokens from a distribution has
 * to return that too, for the rejection rule of speculative sampling. */
typedef struct qn_proposal {
    size_t n;
    qn_token tokens[QN_DRAFT_TOKENS];
    uint8_t classes[QN_DRAFT_TOKENS]; /* of each token */
} qn_proposal;

typedef struct qn_drafter qn_drafter;

typedef struct qn_drafter_vtable {
    const char *name;
    void (*free)(qn_drafter *drafter);
    /* Proposes at most k tokens after `tokens` [n], whose first tokens are those of earlier calls. Returns with n 0 if
     * it has no proposal. */
    void (*propose)(qn_drafter *drafter, const qn_token *tokens, size_t n, size_t k, qn_proposal *out);
    /* NULL, or called with the number of tokens of the last proposal that were accepted. */
    void (*accepted)(qn_drafter *drafter, size_t n);
    size_t (*bytes)(const qn_drafter *drafter); /* of memory that it uses */
} qn_drafter_vtable;

struct qn_drafter {
    const qn_drafter_vtable *vtable;
};

/* ---- Kinds ---- */

/* qn_draft_name - returns the name of a kind, as the option --draft has it. qn_draft_names - all, followed by NULL, by
 * their values. */
const char *qn_draft_name(qn_draft_kind kind);
extern const char *const qn_draft_names[];

/* qn_draft_check - QN_ERR_INVALID for a value that is no kind, and QN_ERR_UNSUPPORTED, naming it, for a kind that this
 * version does not have. qn_model_check_draft looks at the model, too. */
qn_status qn_draft_check(qn_draft_kind kind);

/* The kind that QN_DRAFT names, for requests that leave the choice to the library. */
typedef struct qn_draft_forced {
    bool is_set;        /* drafts are then made whenever there is a proposal, whatever they cost: for tests */
    qn_draft_kind kind; /* QN_DRAFT_AUTO: the variable is not set */
} qn_draft_forced;

/* qn_draft_environment - reads QN_DRAFT. QN_ERR_INVALID for a name that is no kind, else as qn_draft_check. */
qn_status qn_draft_environment(qn_draft_forced *out);

/* ---- Acceptance ---- */

/* Weight of a token in an estimated chance: of one text, and of all texts of a model. */
#define QN_ACCEPTANCE_MEMORY (1.0f / 16)
#define QN_ACCEPTANCE_OF_ALL (1.0f / 64)

/* Estimated chances that a token of each class is accepted if all before it are. */
typedef struct qn_acceptance {
    float chances[QN_DRAFT_CLASSES];
} qn_acceptance;

/* The chances of all texts of a model, with which a new text begins. */
typedef struct qn_acceptances {
    qn_acceptance ngram, head;
} qn_acceptances;

/* qn_acceptances_begin - sets what is expected before anything was measured. qn_head_chances - that of the draft head's
 * tokens by their place in the chain. */
void qn_acceptances_begin(qn_acceptances *all);
extern const float qn_head_chances[QN_DRAFT_MODEL_CLASS];

/* qn_acceptance_learn - updates the chances by the tokens that followed: those of the proposal up to the first that
 * differs. It does not matter whether they were drafted.
 *
 *   memory     weight of a token
 *   followed   [n]
 *
 * Returns how many tokens of the proposal followed. */
size_t qn_acceptance_learn(qn_acceptance *acceptance, float memory, const qn_proposal *proposal,
                           const qn_token *followed, size_t n);

/* qn_acceptance_chance - returns the chance that token i of a proposal is accepted if all before it are. */
static inline float qn_acceptance_chance(const qn_acceptance *acceptance, const qn_proposal *proposal, size_t i)
{
    return acceptance->chances[proposal->classes[i]];
}

#endif
