/* Composes a step: chooses its rows and reserves memory for them. All functions run on the step thread. flight.c runs
 * the step. */
#include "scheduler/scheduler.h"

#include "base/memory.h"

#include <string.h>

/* In steps that also decode, the number of prompt rows is a multiple of PROMPT_ROWS or of the device's preferred size.
 */
enum { PROMPT_ROWS = 16 };

size_t qn_request_rows_left(const qn_request *r)
{
    return r->is_over ? 0 : r->n_tokens + r->has_pending - r->memory->sequence->length;
}

/* ---- Kept states ---- */

static bool is_mark(const qn_request *r, uint32_t position)
{
    for (size_t i = 0; i < r->prompt->n_keep; i++)
        if (r->prompt->keep[i] == position)
            return true;
    return position && position == r->branch;
}

/* The first position above `position` whose state is to be kept. */
static uint32_t next_kept_position(const qn_request *r, uint32_t position)
{
    uint32_t next = (position / QN_STATE_PERIOD + 1) * QN_STATE_PERIOD;
    for (size_t i = 0; i < r->prompt->n_keep; i++)
        if (r->prompt->keep[i] > position && r->prompt->keep[i] < next)
            next = r->prompt->keep[i];
    return r->branch > position && r->branch < next ? r->branch : next;
}

size_t qn_rows_to_state(bool folds_whole_chunks, size_t length, size_t state, size_t n)
{
    const size_t end = length + n;
    if (!folds_whole_chunks)
        return end > state + QN_PAGE ? state + QN_PAGE - length : n;
    if (end < state + QN_PAGE)
        return n;
    /* A piece that contains the chunk before the state ends at it; a later one must not contain a complete chunk. */
    return length + QN_PAGE <= state ? state - length : state + QN_PAGE - 1 - length;
}

/* Returns how many of n rows a piece may have so that the recurrent state does not pass the next position whose state
 * is to be kept. */
static size_t rows_to_kept_state(const qn_scheduler *s, const qn_request *r, size_t n)
{
    const qn_sequence *q = r->memory->sequence;
    return s->kept && s->cache->states
               ? qn_rows_to_state(s->cache->folds_whole_chunks, q->length, next_kept_position(r, q->state_position), n)
               : n;
}

bool qn_request_keeps_state(const qn_scheduler *s, const qn_request *r)
{
    const qn_sequence *q = r->memory->sequence;
    return s->kept && s->cache->states && qn_request_is_keepable(s, r) && q->state_position != r->kept_state &&
           (is_mark(r, q->state_position) || (q->state_position && q->state_position % QN_STATE_PERIOD == 0));
}

void qn_request_keep_prefix(qn_scheduler *s, qn_request *r)
{
    const qn_sequence *q = r->memory->sequence;
    if (!s->kept || !qn_request_is_keepable(s, r))
        return;
    if (qn_request_keeps_state(s, r)) {
        const qn_state_kind kind = is_mark(r, q->state_position) ? QN_STATE_MARK : QN_STATE_PERIODIC;
        qn_kept_state(s->kept, r->lists->scope, qn_token_ids(r->tokens), r->memory, kind);
        r->kept_state = q->state_position;
    }
    if (!r->has_kept_prompt && q->length >= r->n_prompt)
        qn_kept_add(s->kept, r->lists->scope, qn_token_ids(r->tokens), r->memory);
    r->has_kept_prompt = q->length >= r->n_prompt;
}

/* ---- Composition ---- */

static size_t prompt_multiple(const qn_scheduler *s)
{
    return s->model->device->prompt_multiple ? s->model->device->prompt_multiple : PROMPT_ROWS;
}

/* Returns the most rows of prompts in a step with n_decoding decode rows. */
static size_t prompt_rows(const qn_scheduler *s, size_t n_decoding)
{
    const size_t left = s->params.max_rows - n_decoding;
    if (!n_decoding)
        return left;
    const size_t rows = qn_step_times_prompt_rows(&s->times, n_decoding, s->params.step_seconds, prompt_multiple(s));
    return rows < left ? rows : left;
}

/* Returns how many of n rows, fewer than the prompt has left, end at the last position where the device prefers a cut.
 * 0: there is no such position among them. n: the device has no preference, or s is that of a qn_generate call. */
static size_t rows_to_cut(const qn_scheduler *s, const qn_request *r, size_t n)
{
    const size_t multiple = s->model->device->prompt_multiple, begin = r->memory->sequence->length;
    return multiple && !s->generation
               ? (begin + n) / multiple * multiple > begin ? (begin + n) / multiple * multiple - begin : 0
               : n;
}

/* The number of rows for devices with pieces of fixed size: pieces of prompts are not cut, and generated tokens of a
 * sequence that was set aside are evaluated again one by one. */
static size_t fixed_piece(const qn_scheduler *s, const qn_request *r, size_t left)
{
    const size_t length = r->memory->sequence->length;
    const size_t n = length < r->n_prompt ? qn_device_piece(s->model->device, length, r->n_prompt - length) : 1;
    return n <= left ? n : 0;
}

/* The rows of a prompt in a step that has `left` rows for it. The first prompt of a step gets rows in any case. */
static size_t piece_of_prompt(const qn_scheduler *s, const qn_request *r, size_t left, bool is_first)
{
    const size_t wanted = qn_request_rows_left(r), most = qn_request_most_rows(r);
    left = left < most ? left : most;
    if (wanted && s->model->device->piece)
        return fixed_piece(s, r, left);
    size_t n = wanted < left ? wanted : left;
    if (n && n < wanted) {
        const size_t cut = rows_to_cut(s, r, n);
        n = cut || !is_first ? cut : n;
    }
    return n ? rows_to_kept_state(s, r, n) : 0;
}

static void add_piece(qn_scheduled *to, qn_request *r, size_t n)
{
    const bool samples =
        n == qn_request_rows_left(r) && r->params.max_tokens != 0 && atomic_load(&r->mask_state) == QN_MASK_NONE;
    to->pieces[to->n_pieces++] = (qn_piece){ .request = r, .n = n, .samples = samples };
    to->n_decoding += n == 1; /* the last token of a prompt costs as much */
}

/* Returns the number of rows of prompts that a client gets at a time. */
static size_t part_of_client(const qn_scheduler *s)
{
    const size_t multiple = prompt_multiple(s), piece = s->model->device->piece;
    return multiple > piece ? multiple : piece;
}

/* Whether tokens may be drafted after a piece: it decodes, and its tokens are known. */
static bool takes_draft(const qn_piece *piece)
{
    return piece->samples && piece->n == 1 && !piece->request->n_in_flight &&
           (piece->request->drafts.forces || piece->request->drafts.proposes);
}

/* Returns the masks or the log probabilities of the next drafted rows of a step. NULL: they are not needed, or there is
 * no memory, in which case *fits is false. */
static uint32_t *draft_masks(const qn_scheduler *s, qn_scheduled *to, const qn_request *r, bool *fits)
{
    const size_t n_words = qn_sample_mask_words(s->model->hparams.n_vocab);
    if (!r->constraint.match)
        return NULL;
    if (!to->masks && qn_alloc(&to->masks, QN_STEP_DRAFTED * n_words, sizeof *to->masks, "masks") != QN_OK)
        *fits = false;
    return *fits ? to->masks + to->n_drafted * n_words : NULL;
}

static qn_logprobs *draft_logprobs(qn_scheduled *to, const qn_request *r, bool *fits)
{
    if (r->params.n_logprobs < 0)
        return NULL;
    if (!to->draft_logprobs &&
        qn_alloc(&to->draft_logprobs, QN_STEP_DRAFTED, sizeof *to->draft_logprobs, "log probabilities") != QN_OK)
        *fits = false;
    return *fits ? to->draft_logprobs + to->n_drafted : NULL;
}

/* Drafts up to n rows after a piece: forced text, or the first n tokens of the proposal. */
static void draft(qn_scheduler *s, qn_scheduled *to, qn_piece *piece, size_t n, bool is_proposal)
{
    qn_request *r = piece->request;
    bool fits = true;
    uint32_t *masks = draft_masks(s, to, r, &fits);
    piece->logprobs = draft_logprobs(to, r, &fits);
    if (!fits)
        return;
    piece->masks = masks;
    piece->is_proposal = is_proposal;
    piece->n_drafted =
        is_proposal ? qn_request_take_proposal(r, n, masks) : qn_request_draft(r, to->n_pieces, n, masks);
    piece->n += piece->n_drafted;
    to->n_drafted += piece->n_drafted;
}

/* Sets how many tokens of each offer are drafted, at most `most` in all. */
static void choose_proposals(qn_scheduler *s, qn_scheduled *to, size_t n_rows, size_t most)
{
    if (n_rows == to->n_decoding)
        (void)qn_row_costs_choose(&s->drafting.costs, &s->drafting.passes, n_rows, to->offers, to->n_pieces, most);
    for (uint32_t i = 0; i < to->n_pieces; i++) {
        qn_row_offer *offer = &to->offers[i];
        const size_t n = to->pieces[i].request->drafts.always ? offer->n : offer->chosen;
        offer->chosen = n < most ? n : most;
        most -= offer->chosen;
    }
}

/* Whether the model's draft head may draft for a request. */
static bool uses_head(const qn_scheduler *s, const qn_request *r)
{
    return r->drafts.has_head && (r->drafts.head.is_asked || !s->drafting.head.rests);
}

/* What the draft head's tokens gain in a step, in which other drafters' tokens are, too. */
static double gain_of_head(const qn_scheduler *s, const qn_scheduled *to, size_t n_rows)
{
    const qn_row_costs *costs = &s->drafting.costs, *passes = &s->drafting.passes;
    const double gain = qn_row_costs_gain(costs, passes, n_rows, to->offers, to->n_pieces, true),
                 without = qn_row_costs_gain(costs, passes, n_rows, to->offers, to->n_pieces, false);
    return gain - without;
}

/* Weighs what the draft head is expected to gain in a step against the cost of its pairs. */
static void weigh_head(qn_scheduler *s, const qn_scheduled *to, size_t n_rows)
{
    const qn_row_costs *costs = &s->drafting.costs, *passes = &s->drafting.passes;
    bool may_draft = false, drafts = false;
    for (uint32_t i = 0; i < to->n_pieces; i++) {
        const qn_drafts *d = &to->pieces[i].request->drafts;
        if (d->has_head && d->head.is_asked)
            return;
        may_draft = may_draft || (d->has_head && takes_draft(&to->pieces[i]));
        drafts = drafts || (to->offers[i].is_passed && to->offers[i].chosen);
    }
    if (may_draft && n_rows == to->n_decoding && qn_row_costs_is_known(costs, n_rows))
        qn_head_use_add(&s->drafting.head, drafts ? gain_of_head(s, to, n_rows) : 0,
                        s->drafting.head.share * qn_row_costs_pass_seconds(costs, passes, n_rows) /
                            qn_row_costs_seconds(costs, n_rows));
}

/* Adds the proposals of drafters, as far as they are worth the time of their rows. Beside prompts that is not known. */
static void add_proposals(qn_scheduler *s, qn_scheduled *to, size_t n_rows, size_t most)
{
    qn_draft_model_run(s, to, n_rows, most);
    for (uint32_t i = 0; i < to->n_pieces; i++) {
        qn_piece *piece = &to->pieces[i];
        to->offers[i] = (qn_row_offer){ .chances = piece->request->drafts.chances };
        if (!takes_draft(piece) || piece->n_drafted)
            continue;
        to->offers[i].n = qn_request_propose(piece->request, QN_DRAFT_TOKENS);
        const size_t n_head = uses_head(s, piece->request) ? qn_request_offer_head(piece->request, QN_DRAFT_TOKENS) : 0;
        if (n_head)
            to->offers[i] = (qn_row_offer){ .chances = piece->request->drafts.head.chances,
                                            .n = n_head,
                                            .is_passed = true,
                                            .block = qn_request_block_rows(piece->request) };
    }
    choose_proposals(s, to, n_rows, most);
    weigh_head(s, to, n_rows);
    qn_scheduler_run_passes(s, to);
    for (uint32_t i = 0; i < to->n_pieces; i++)
        if (to->offers[i].chosen)
            draft(s, to, &to->pieces[i], to->offers[i].chosen, true);
}

/* Adds drafts after the decode rows, while the step has rows left: text that grammars force, then proposals.
 * is_measured: prompts wait until the time of a step without them is known (qn_step_times_prompt_rows), which a draft
 * would hide. */
static void add_drafts(qn_scheduler *s, qn_scheduled *to, bool is_measured)
{
    size_t n_rows = 0;
    to->n_drafted = 0;
    to->draft_seconds = 0;
    to->n_passes = 0;
    if (s->flight || is_measured) /* a step launched while another is in flight must be one batch of the device */
        return;
    for (uint32_t i = 0; i < to->n_pieces; i++)
        n_rows += to->pieces[i].n;
    const size_t left = s->params.max_rows - n_rows, most = left < QN_STEP_DRAFTED ? left : QN_STEP_DRAFTED;
    for (uint32_t i = 0; i < to->n_pieces; i++)
        if (takes_draft(&to->pieces[i]) && to->pieces[i].request->drafts.forces)
            draft(s, to, &to->pieces[i], most - to->n_drafted, false);
    add_proposals(s, to, n_rows, most - to->n_drafted);
}

/* Adds one row for each sequence being decoded, then pieces of prompts; of one client, the oldest prompt first. */
void qn_scheduler_compose(qn_scheduler *s, qn_scheduled *to)
{
    size_t n_decoding = 0, n_prompts = 0;
    qn_scheduler_share_scores(s, to);
    qn_scheduler_alloc_normed(s, to);
    for (uint32_t i = 0; i < s->n_running; i++) {
        const size_t n = qn_request_rows_left(s->running[i]);
        n_decoding += n == 1;
        n_prompts += n > 1;
    }
    if (s->params.prompts_first && n_prompts)
        n_decoding = 0;
    if (n_prompts)
        qn_clients_share_prompts(s, prompt_rows(s, n_decoding), part_of_client(s));
    bool is_first = true;
    to->n_pieces = 0;
    to->n_decoding = 0;
    for (uint32_t i = 0; n_decoding && i < s->n_running; i++)
        if (qn_request_rows_left(s->running[i]) == 1)
            add_piece(to, s->running[i], 1);
    for (uint32_t i = 0; i < s->n_running; i++) {
        qn_request *r = s->running[i];
        const size_t n = qn_request_rows_left(r) > 1 ? piece_of_prompt(s, r, r->client->prompt_share, is_first) : 0;
        if (!n)
            continue;
        add_piece(to, r, n);
        r->client->prompt_share -= n;
        is_first = false;
    }
    add_drafts(s, to, n_prompts && is_first);
}

/* ---- Memory ---- */

static void drop_from_step(qn_scheduled *step, const qn_request *r)
{
    for (uint32_t i = 0; i < step->n_pieces; i++)
        if (step->pieces[i].request == r)
            step->pieces[i].request = NULL;
    qn_memory_on_append(r->memory, r->memory->sequence->length); /* gives back what was reserved */
}

/* The youngest request that can be set aside, of the client that holds most tokens; NULL if there is none. */
static qn_request *find_youngest(const qn_scheduler *s)
{
    qn_request *youngest = NULL;
    qn_clients_count_held(s);
    for (uint32_t i = 0; i < s->n_running; i++) {
        qn_request *r = s->running[i];
        if (r->result.n_set_aside >= QN_MAX_SET_ASIDE)
            continue;
        const size_t held = youngest ? youngest->client->n_held : 0;
        if (!youngest || r->client->n_held > held || (r->client->n_held == held && r->id > youngest->id))
            youngest = r;
    }
    return youngest;
}

bool qn_scheduler_has_finished(const qn_scheduler *s)
{
    for (uint32_t i = 0; i < s->n_running; i++)
        if (s->running[i]->is_over)
            return true;
    return false;
}

/* Reserves memory for the rows of a piece. If they do not fit, drafted rows are dropped: they are not worth taking
 * memory from other requests. */
static qn_status prepare_piece(qn_piece *piece)
{
    qn_memory *memory = piece->request->memory;
    const qn_status status = memory->vtable->prepare(memory, piece->n);
    if (status != QN_ERR_MEMORY || !piece->n_drafted)
        return status;
    piece->n -= piece->n_drafted;
    piece->n_drafted = 0;
    return memory->vtable->prepare(memory, piece->n);
}

/* Reserves memory for a piece. To get memory it drops kept prefixes first, then requests that are over, then the
 * youngest sequences, then rows of the piece. A request that does not fit alone ends; piece->request is then NULL. */
static void reserve_piece(qn_scheduler *s, qn_scheduled *step, qn_piece *piece)
{
    qn_request *r = piece->request;
    while (piece->request) {
        const qn_status status = prepare_piece(piece);
        if (status == QN_OK)
            return;
        if (status == QN_ERR_MEMORY && qn_scheduler_has_finished(s)) {
            qn_scheduler_catch_up(s);
            continue;
        }
        qn_request *youngest = status == QN_ERR_MEMORY && s->n_running > 1 ? find_youngest(s) : NULL;
        if (youngest) {
            drop_from_step(step, youngest);
            qn_scheduler_set_aside(s, youngest);
        } else if (status == QN_ERR_MEMORY && piece->n > QN_PAGE) {
            piece->n = piece->n / 2 > QN_PAGE ? piece->n / 2 / QN_PAGE * QN_PAGE : QN_PAGE;
            piece->samples = false;
        } else {
            piece->request = NULL;
            qn_scheduler_end(s, r, QN_FINISH_ERROR, status);
        }
    }
}

static void remove_dropped(qn_scheduled *step)
{
    uint32_t n = 0;
    step->n_decoding = step->n_drafted = 0;
    for (uint32_t i = 0; i < step->n_pieces; i++) {
        if (!step->pieces[i].request)
            continue;
        step->pieces[n++] = step->pieces[i];
        step->n_decoding += step->pieces[i].n - step->pieces[i].n_drafted == 1;
        step->n_drafted += step->pieces[i].n_drafted;
    }
    step->n_pieces = n;
}

void qn_scheduler_reserve(qn_scheduler *s, qn_scheduled *step)
{
    for (uint32_t i = 0; i < step->n_pieces; i++)
        if (step->pieces[i].request)
            reserve_piece(s, step, &step->pieces[i]);
    remove_dropped(step);
}

void qn_scheduler_unreserve(qn_scheduled *step)
{
    for (uint32_t i = 0; i < step->n_pieces; i++) {
        qn_memory *memory = step->pieces[i].request->memory;
        qn_memory_on_append(memory, memory->sequence->length);
    }
    step->n_pieces = 0;
}

bool qn_scheduler_reserve_ahead(qn_scheduled *step)
{
    for (uint32_t i = 0; i < step->n_pieces; i++) {
        if (prepare_piece(&step->pieces[i]) == QN_OK)
            continue;
        step->n_pieces = i;
        qn_scheduler_unreserve(step);
        return false;
    }
    return true;
}

/* ---- Rows ---- */

size_t qn_scheduler_positions(const qn_scheduler *s, const qn_scheduled *step)
{
    size_t longest = 0;
    for (uint32_t i = 0; i < step->n_pieces; i++) {
        const size_t end = step->pieces[i].request->memory->sequence->length + step->pieces[i].n;
        longest = end > longest ? end : longest;
    }
    return qn_step_positions(longest, s->params.n_ctx);
}

static void fill_piece(const qn_scheduler *s, qn_scheduled *to, qn_piece *piece)
{
    qn_step *step = &to->step;
    qn_request *r = piece->request;
    piece->first_row = step->n_rows;
    const uint32_t first = r->memory->sequence->length;
    for (uint32_t at = first; at < first + piece->n; at++) {
        const bool is_known = at < r->n_tokens + piece->n_drafted;
        const uint32_t offset = r->rope_offset;
        to->rows[step->n_rows++] = (qn_row){ .token = is_known ? r->tokens[at] : 0,
                                             .source = is_known ? 0 : r->logit_row + 1,
                                             .position = at,
                                             .rope_offsets = { offset, offset, offset, offset },
                                             .is_single = piece->n_drafted && s->model->device->piece,
                                             .memory = r->memory };
    }
    qn_scheduler_fill_scores(to, piece, piece->first_row);
    qn_request_ask_normed(s, to, piece);
    if (!piece->samples)
        return;
    r->logit_row = (uint32_t)step->n_logit_rows;
    for (size_t i = 0; i <= piece->n_drafted; i++) {
        const uint32_t *mask = i && piece->masks ? piece->masks + (i - 1) * qn_sample_mask_words(r->n_vocab) : NULL;
        qn_logprobs *logprobs = i && piece->logprobs ? piece->logprobs + (i - 1) : NULL;
        to->requests[step->n_logit_rows] =
            i ? qn_request_drafted_sample(r, i, mask, logprobs) : qn_request_next_sample(r);
        to->logit_rows[step->n_logit_rows++] = (uint32_t)(step->n_rows - 1 - piece->n_drafted + i);
    }
}

void qn_scheduler_fill_rows(const qn_scheduler *s, qn_scheduled *to)
{
    to->step = (qn_step){ .without_pairs = s->drafting.head.rests, .rows = to->rows, .logit_rows = to->logit_rows };
    to->n_scored = 0;
    for (uint32_t i = 0; i < to->n_pieces; i++) {
        fill_piece(s, to, &to->pieces[i]);
        to->step.without_pairs = to->step.without_pairs && !to->pieces[i].request->drafts.head.is_asked;
    }
    to->step.requests = to->step.n_logit_rows ? to->requests : NULL;
}
