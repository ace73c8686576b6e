/* Kinds of drafters by their names, and estimates of how often their tokens are accepted. */
#include "engine/spec/drafter.h"

#include "engine/spec/ngram.h"

#include <stdlib.h>
#include <string.h>

const char *const qn_draft_names[] = { [QN_DRAFT_AUTO] = "auto",
                                       [QN_DRAFT_OFF] = "off",
                                       [QN_DRAFT_NGRAM] = "ngram",
                                       [QN_DRAFT_MTP] = "mtp",
                                       [QN_DRAFT_DFLASH] = "dflash",
                                       [QN_DRAFT_MODEL] = "model",
                                       NULL };
enum { N_KINDS = sizeof qn_draft_names / sizeof *qn_draft_names - 1 };

/* ---- Kinds ---- */

const char *qn_draft_name(qn_draft_kind kind)
{
    return (unsigned)kind < N_KINDS ? qn_draft_names[kind] : "";
}

qn_status qn_draft_check(qn_draft_kind kind)
{
    switch (kind) {
    case QN_DRAFT_AUTO:
    case QN_DRAFT_OFF:
    case QN_DRAFT_NGRAM:
    case QN_DRAFT_MTP:
    case QN_DRAFT_DFLASH:
    case QN_DRAFT_MODEL: return QN_OK;
    }
    return qn_fail(QN_ERR_INVALID, "draft: %d, expected a qn_draft_kind", (int)kind);
}

qn_status qn_draft_environment(qn_draft_forced *out)
{
    const char *name = getenv("QN_DRAFT");
    *out = (qn_draft_forced){ .kind = QN_DRAFT_AUTO };
    if (!name || !*name)
        return QN_OK;
    for (unsigned kind = 0; kind < N_KINDS; kind++)
        if (!strcmp(name, qn_draft_names[kind])) {
            *out = (qn_draft_forced){ .is_set = kind > QN_DRAFT_OFF, .kind = (qn_draft_kind)kind };
            return qn_draft_check(out->kind);
        }
    return qn_fail(QN_ERR_INVALID, "QN_DRAFT: '%s', expected auto, off, ngram, mtp, dflash or model", name);
}

/* ---- Acceptance ---- */

const float qn_head_chances[QN_DRAFT_MODEL_CLASS] = { 0.7f, 0.65f, 0.6f, 0.55f, 0.5f, 0.5f, 0.5f, 0.5f };

void qn_acceptances_begin(qn_acceptances *all)
{
    memcpy(all->ngram.chances, qn_ngram_chances, sizeof qn_ngram_chances);
    memcpy(all->head.chances, qn_head_chances, sizeof qn_head_chances);
}

size_t qn_acceptance_learn(qn_acceptance *acceptance, float memory, const qn_proposal *proposal,
                           const qn_token *followed, size_t n)
{
    const size_t most = n < proposal->n ? n : proposal->n;
    for (size_t i = 0; i < most; i++) {
        float *chance = &acceptance->chances[proposal->classes[i]];
        const bool is_same = proposal->tokens[i] == followed[i];
        *chance += memory * ((float)is_same - *chance);
        if (!is_same)
            return i;
    }
    return most;
}
