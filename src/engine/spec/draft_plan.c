/* Decisions about a draft model's steps. */
#include "engine/spec/draft_plan.h"

#include <string.h>

/* What a draft model may lose before it has gained anything, in seconds and in steps without drafts, whichever is
 * more; and afterwards, of the time of all steps. */
static const double CREDIT_SECONDS = 1, CREDIT_STEPS = 64, LOSS = 0.01;

/* As in qn_row_costs_choose. */
static const double LEAST_GAIN = 1.03;

enum { N_CLASSES = QN_DRAFT_CLASSES - QN_DRAFT_MODEL_CLASS };

/* ---- The record ---- */

void qn_draft_record_begin(qn_draft_record *r)
{
    static const float chances[N_CLASSES] = { 0.1f, 0.25f, 0.4f, 0.55f, 0.7f, 0.85f, 0.93f, 0.98f };
    if (r->chance > 0)
        return;
    memcpy(r->chances, chances, sizeof chances);
    r->chance = 0.7f;
}

uint8_t qn_draft_class(float chance)
{
    static const float least[N_CLASSES] = { 0, 0.2f, 0.35f, 0.5f, 0.65f, 0.8f, 0.9f, 0.97f };
    uint8_t class = 0;
    while (class + 1 < N_CLASSES && chance >= least[class + 1])
        class ++;
    return (uint8_t)(QN_DRAFT_MODEL_CLASS + class);
}

static double credit_of(double step)
{
    const double steps = CREDIT_STEPS * step;
    return steps > CREDIT_SECONDS ? steps : CREDIT_SECONDS;
}

bool qn_draft_record_allows(const qn_draft_record *r, double seconds, double step)
{
    return r->gained - seconds > -(credit_of(step) + LOSS * r->elapsed);
}

void qn_draft_record_add(qn_draft_record *r, double seconds, double gained, double step)
{
    const double most = credit_of(step) - LOSS * r->elapsed;
    r->elapsed += seconds;
    r->gained += gained;
    if (r->gained > most) /* what was gained long ago does not pay for losses now */
        r->gained = most;
}

/* ---- The plan ---- */

double qn_draft_seconds(const qn_draft_case *c, size_t n)
{
    const double seconds = qn_row_costs_seconds(c->draft_costs, n);
    return qn_row_costs_are_known(c->draft_costs) ? seconds : c->guess * seconds;
}

qn_draft_plan qn_draft_plan_find(const qn_draft_case *c)
{
    const double without = qn_row_costs_seconds(c->costs, c->n_rows);
    double best = (double)c->n_rows / without * LEAST_GAIN, chance = 1, expected = 0;
    double drafted = qn_draft_seconds(c, c->first_rows);
    qn_draft_plan plan = { 0 };
    for (size_t depth = 1; depth <= c->most && c->n_rows + c->n * depth <= QN_COST_ROWS; depth++) {
        chance *= (double)c->chance;
        expected += chance;
        const double verified = qn_row_costs_seconds(c->costs, c->n_rows + c->n * depth), with = verified + drafted,
                     least = c->n_rows > c->n ? 1 : 1 + expected,
                     rate = ((double)c->n_rows + (double)c->n * expected) / with;
        if (rate > best && with <= without * least * QN_COST_SLOWER) {
            best = rate;
            plan = (qn_draft_plan){ .depth = depth,
                                    .rate = rate,
                                    .row_cost = (verified - without) / (double)(c->n * depth) };
        }
        drafted += qn_draft_seconds(c, c->n);
    }
    return plan;
}

bool qn_draft_plan_continues(const qn_draft_case *c, const qn_draft_plan *plan, size_t n, float reached)
{
    const double cost = qn_draft_seconds(c, n) / (double)n + plan->row_cost;
    return (double)reached * (double)c->chance > plan->rate * cost;
}
