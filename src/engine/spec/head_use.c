/* Trials and rests of the draft head. */
#include "engine/spec/head_use.h"

static void begin(qn_head_use *use, bool rests)
{
    use->rests = rests;
    use->gained = 0;
    use->n_steps = 0;
}

void qn_head_use_add(qn_head_use *use, double gain, double cost)
{
    use->n_steps++;
    if (use->rests) {
        if (use->n_steps >= use->rest)
            begin(use, false);
        return;
    }
    use->gained += gain - cost;
    if (use->n_steps < QN_HEAD_TRIAL)
        return;
    const bool pays = use->gained > 0 || use->is_asked;
    const uint32_t longer = use->rest ? 2 * use->rest : QN_HEAD_FIRST_REST;
    use->rest = pays ? 0 : longer < QN_HEAD_LAST_REST ? longer : QN_HEAD_LAST_REST;
    begin(use, !pays);
}
