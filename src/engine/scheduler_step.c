/* One step: which rows it has, the memory for them, and what is done with the tokens that it samples. */
#include "engine/scheduler.h"

#include "base/memory.h"

#include <string.h>

/* Rows of prompts beside sequences that are decoded are a multiple of PROMPT_ROWS, or of what the device prefers. */
enum { PROMPT_ROWS = 16 };

static size_t rows_left(const qn_request *r)
{
    return r->is_over ? 0 : r->n_tokens - r->memory->sequence->length;
}

/* ---- Kept states ---- */

static bool is_mark(const qn_request *r, uint32_t position)
{
    for (size_t i = 0; i < r->n_keep; i++)
        if (r->keep[i] == position)
            return true;
    return position && position == r->branch;
}

/* The first position above `position` whose state is to be kept. */
static uint32_t next_kept_position(const qn_request *r, uint32_t position)
{
    uint32_t next = (position / QN_STATE_PERIOD + 1) * QN_STATE_PERIOD;
    for (size_t i = 0; i < r->n_keep; i++)
        if (r->keep[i] > position && r->keep[i] < next)
            next = r->keep[i];
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

/* Of n rows that could be evaluated, those until the next state that is to be kept. */
static size_t rows_to_kept_state(const qn_scheduler *s, const qn_request *r, size_t n)
{
    const qn_sequence *q = r->memory->sequence;
    return s->kept && s->cache->states
               ? qn_rows_to_state(s->cache->folds_whole_chunks, q->length, next_kept_position(r, q->state_position), n)
               : n;
}

static void keep_prefix(qn_scheduler *s, qn_request *r)
{
    const qn_sequence *q = r->memory->sequence;
    if (!s->kept || !qn_request_is_keepable(s, r))
        return;
    const bool is_marked = is_mark(r, q->state_position);
    if (s->cache->states && q->state_position != r->kept_state &&
        (is_marked || (q->state_position && q->state_position % QN_STATE_PERIOD == 0))) {
        qn_kept_state(s->kept, r->scope, r->tokens, r->memory, is_marked ? QN_STATE_MARK : QN_STATE_PERIODIC);
        r->kept_state = q->state_position;
    }
    if (!r->has_kept_prompt && q->length >= r->n_prompt)
        qn_kept_add(s->kept, r->scope, r->tokens, r->memory);
    r->has_kept_prompt = q->length >= r->n_prompt;
}

/* ---- Composition ---- */

/* Most rows of prompts in a step beside n_decoding sequences. */
static size_t prompt_rows(const qn_scheduler *s, size_t n_decoding)
{
    const size_t multiple = s->model->device->prompt_multiple ? s->model->device->prompt_multiple : PROMPT_ROWS,
                 left = s->params.max_rows - n_decoding;
    if (!n_decoding)
        return left;
    const size_t rows = qn_step_times_prompt_rows(&s->times, n_decoding, s->params.step_seconds, multiple);
    return rows < left ? rows : left;
}

/* Of n rows, fewer than are left of the prompt, those up to the last position where the device prefers a cut. */
static size_t rows_to_cut(const qn_scheduler *s, const qn_request *r, size_t n)
{
    const size_t multiple = s->model->device->prompt_multiple, begin = r->memory->sequence->length;
    return multiple ? (begin + n) / multiple * multiple > begin ? (begin + n) / multiple * multiple - begin : 0 : n;
}

/* The same for devices whose pieces are fixed: one of a prompt is not cut, and generated tokens of a sequence that was set aside are
 * evaluated one by one again. */
static size_t fixed_piece(const qn_scheduler *s, const qn_request *r, size_t left)
{
    const size_t length = r->memory->sequence->length;
    const size_t n = length < r->n_prompt ? qn_device_piece(s->model->device, length, r->n_prompt - length) : 1;
    return n <= left ? n : 0;
}

/* The rows of a prompt in a step that has `left` rows for it. The first prompt of a step gets rows in any case. */
static size_t piece_of_prompt(const qn_scheduler *s, const qn_request *r, size_t left, bool is_first)
{
    const size_t wanted = rows_left(r);
    if (wanted && s->model->device->piece)
        return fixed_piece(s, r, left);
    size_t n = wanted < left ? wanted : left;
    if (n && n < wanted) {
        const size_t cut = rows_to_cut(s, r, n);
        n = cut || !is_first ? cut : n;
    }
    return n ? rows_to_kept_state(s, r, n) : 0;
}

/* A row for each sequence that is being decoded; behind them pieces of prompts, the oldest first. */
static void compose(qn_scheduler *s)
{
    size_t n_decoding = 0, n_prompts = 0;
    for (uint32_t i = 0; i < s->n_running; i++) {
        const size_t n = rows_left(s->running[i]);
        n_decoding += n == 1;
        n_prompts += n > 1;
    }
    if (s->params.prompts_first && n_prompts)
        n_decoding = 0;
    size_t left = n_prompts ? prompt_rows(s, n_decoding) : 0;
    bool is_first = true;
    s->n_pieces = 0;
    for (uint32_t i = 0; n_decoding && i < s->n_running; i++)
        if (rows_left(s->running[i]) == 1)
            s->pieces[s->n_pieces++] = (qn_piece){ s->running[i], 1 };
    for (uint32_t i = 0; i < s->n_running; i++) {
        qn_request *r = s->running[i];
        const size_t n = rows_left(r) > 1 ? piece_of_prompt(s, r, left, is_first) : 0;
        if (n)
            s->pieces[s->n_pieces++] = (qn_piece){ r, n };
        left -= n;
        is_first = is_first && !n;
    }
}

/* ---- Memory ---- */

static void drop_from_step(qn_scheduler *s, const qn_request *r)
{
    for (uint32_t i = 0; i < s->n_pieces; i++)
        if (s->pieces[i].request == r)
            s->pieces[i].request = NULL;
    r->memory->vtable->on_append(r->memory, r->memory->sequence->length); /* gives back what was reserved */
}

/* The youngest that can be set aside, or NULL. */
static qn_request *find_youngest(const qn_scheduler *s)
{
    qn_request *youngest = NULL;
    for (uint32_t i = 0; i < s->n_running; i++) {
        qn_request *r = s->running[i];
        if (r->result.n_set_aside < QN_MAX_SET_ASIDE && (!youngest || r->id > youngest->id))
            youngest = r;
    }
    return youngest;
}

static bool has_finished(const qn_scheduler *s)
{
    for (uint32_t i = 0; i < s->n_running; i++)
        if (s->running[i]->is_over)
            return true;
    return false;
}

/* Reserves memory for a piece; kept prefixes go first, then requests that are over, then the youngest sequences, then rows of the piece.
 * A request that does not fit by itself ends. */
static void reserve_piece(qn_scheduler *s, qn_piece *piece)
{
    qn_request *r = piece->request;
    while (piece->request) {
        const qn_status status = r->memory->vtable->prepare(r->memory, piece->n);
        if (status == QN_OK)
            return;
        if (status == QN_ERR_MEMORY && has_finished(s)) {
            qn_scheduler_catch_up(s);
            continue;
        }
        qn_request *youngest = status == QN_ERR_MEMORY && s->n_running > 1 ? find_youngest(s) : NULL;
        if (youngest) {
            drop_from_step(s, youngest);
            qn_scheduler_set_aside(s, youngest);
        } else if (status == QN_ERR_MEMORY && piece->n > QN_PAGE) {
            piece->n = piece->n / 2 > QN_PAGE ? piece->n / 2 / QN_PAGE * QN_PAGE : QN_PAGE;
        } else {
            piece->request = NULL;
            qn_scheduler_end(s, r, QN_FINISH_ERROR, status);
        }
    }
}

static void reserve_pieces(qn_scheduler *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_pieces; i++)
        if (s->pieces[i].request)
            reserve_piece(s, &s->pieces[i]);
    for (uint32_t i = 0; i < s->n_pieces; i++)
        if (s->pieces[i].request)
            s->pieces[n++] = s->pieces[i];
    s->n_pieces = n;
}

/* ---- Running ---- */

static bool samples(const qn_piece *piece)
{
    const qn_request *r = piece->request;
    return piece->n == rows_left(r) && r->params.max_tokens != 0 && atomic_load(&r->mask_state) == QN_MASK_NONE;
}

static size_t fill_rows(qn_scheduler *s, qn_step *step)
{
    size_t longest = 0;
    *step = (qn_step){ .rows = s->rows, .logit_rows = s->logit_rows };
    for (uint32_t p = 0; p < s->n_pieces; p++) {
        qn_request *r = s->pieces[p].request;
        const uint32_t first = r->memory->sequence->length;
        for (size_t i = 0; i < s->pieces[p].n; i++)
            s->rows[step->n_rows++] = (qn_row){ .token = r->tokens[first + i],
                                                .position = first + (uint32_t)i,
                                                .cache = r->memory->cache,
                                                .recurrent = r->memory->recurrent,
                                                .memory = r->memory };
        longest = first + s->pieces[p].n > longest ? first + s->pieces[p].n : longest;
        if (!samples(&s->pieces[p]))
            continue;
        s->requests[step->n_logit_rows] = qn_request_next_sample(r);
        s->logit_rows[step->n_logit_rows++] = (uint32_t)step->n_rows - 1;
    }
    step->requests = step->n_logit_rows ? s->requests : NULL;
    return longest;
}

/* The workspace grows in few steps, to at most that of n_ctx positions. */
static size_t workspace_positions(const qn_scheduler *s, size_t longest)
{
    size_t positions = 4096;
    while (positions < longest)
        positions *= 2;
    return positions < s->params.n_ctx ? positions : s->params.n_ctx;
}

/* ---- After the step ---- */

static bool ends_at(const qn_scheduler *s, const qn_request *r, qn_token token)
{
    for (size_t i = 0; i < r->params.n_stop_tokens; i++)
        if (r->stop_tokens[i] == token)
            return true;
    return !r->params.ignore_end && qn_token_is_end(s->model, token);
}

/* Whether the next step does not depend on what emitting the last token finds: no stop string can end the request, no budget its
 * reasoning, and the step does not replace what is emitted. First tokens are emitted at once. */
static bool can_emit_later(const qn_scheduler *s, const qn_request *r)
{
    return s->overlaps && !r->params.n_stop && r->params.reasoning_budget < 0 && r->params.n_logprobs < 0 &&
           r->result.n_generated > 1;
}

/* Emits the last token. Sets *found to whether a stop string ended the request. */
static qn_status emit_token(qn_scheduler *s, qn_request *r, bool *found)
{
    const qn_token token = r->tokens[r->n_tokens - 1];
    r->has_output = false;
    return qn_request_emit(s, r, token, !(token >= 0 && ends_at(s, r, token)), found);
}

/* Adds a token. Sets is_over and result.finish if it is the last. */
static qn_status add_token(qn_scheduler *s, qn_request *r, qn_token token, bool is_forced)
{
    bool found = false;
    QN_TRY(qn_realloc_array(&r->tokens, &r->cap_tokens, r->n_tokens + 1, sizeof *r->tokens, "tokens of a request"));
    r->tokens[r->n_tokens++] = token;
    r->is_forced = is_forced;
    r->result.n_generated++;
    r->first_token = r->first_token > 0 || is_forced ? r->first_token : qn_now();
    r->has_output = can_emit_later(s, r);
    if (!r->has_output)
        QN_TRY(emit_token(s, r, &found));
    r->result.is_stop_string = found;
    const bool is_end = token >= 0 && ends_at(s, r, token);
    const bool is_full =
        r->n_tokens > s->params.n_ctx || (r->params.max_tokens > 0 && r->result.n_generated >= (uint64_t)r->params.max_tokens);
    r->result.finish = is_end || found ? QN_FINISH_STOP : QN_FINISH_LENGTH;
    r->is_over = is_end || found || is_full;
    return QN_OK;
}

/* If the budget of reasoning is spent: adds the words that end it. The next step evaluates them as it does a prompt. */
static qn_status add_words(qn_scheduler *s, qn_request *r)
{
    const char *words;
    qn_token *tokens;
    size_t length, n;
    if (r->params.reasoning_budget < 0 || r->params.max_tokens == 0 || r->is_over ||
        !qn_output_reasoning_spent(r->parser, &words, &length))
        return QN_OK;
    QN_TRY(qn_tokenize(s->model, words, length, false, true, &tokens, &n));
    qn_status status = QN_OK;
    for (size_t i = 0; status == QN_OK && i < n && !r->is_over; i++)
        status = add_token(s, r, tokens[i], true);
    qn_free_tokens(tokens);
    return status;
}

/* Adds a sampled token and what follows it, unless `status` is an error, with which the request ends. `sampled` is NULL before the
 * first. Returns how many tokens were generated. */
static size_t take_token(qn_scheduler *s, qn_request *r, const qn_sample_request *sampled, qn_status status)
{
    const size_t before = r->result.n_generated;
    if (status == QN_OK && sampled)
        status = qn_sample_status(sampled->best);
    if (status == QN_OK && sampled)
        status = add_token(s, r, sampled->token, false);
    if (status == QN_OK)
        status = add_words(s, r);
    if (status == QN_OK)
        return r->result.n_generated - before;
    qn_scheduler_end(s, r, QN_FINISH_ERROR, status);
    return 0;
}

/* A budget may be spent before the first token. */
static size_t begin_answers(qn_scheduler *s)
{
    size_t n = 0;
    for (uint32_t i = s->n_running; i-- > 0;) /* one that ends leaves the list */
        if (!s->running[i]->result.n_generated)
            n += take_token(s, s->running[i], NULL, QN_OK);
    return n;
}

/* What one piece's rows have brought; `sampled` is its token, or NULL. Returns how many tokens were generated. */
static size_t complete_piece(qn_scheduler *s, const qn_piece *piece, const qn_sample_request *sampled)
{
    qn_request *r = piece->request;
    const bool is_complete = r->memory->sequence->length + piece->n == r->n_tokens;
    r->memory->vtable->on_append(r->memory, r->memory->sequence->length + piece->n);
    keep_prefix(s, r);
    if (r->output_status != QN_OK || (sampled && !r->is_rejected))
        return take_token(s, r, sampled, r->output_status);
    if (sampled) {
        qn_request_reject(s, r, sampled);
    } else if (is_complete && r->params.max_tokens == 0) {
        r->result.finish = QN_FINISH_LENGTH;
        r->is_over = true;
    }
    return 0;
}

/* Tokens that were sampled under masks since the last step. Returns how many were generated. */
static size_t take_masked_tokens(qn_scheduler *s)
{
    qn_sample_request sampled;
    qn_status status;
    size_t n = 0;
    for (uint32_t i = s->n_running; i-- > 0;) /* one that ends leaves the list */
        if (qn_request_take_masked(s->running[i], &sampled, &status))
            n += take_token(s, s->running[i], &sampled, status);
    return n;
}

/* A request whose text fails ends with its next step, since that may be computed now. */
void qn_request_emit_last(qn_scheduler *s, qn_request *r)
{
    bool found;
    r->output_status = emit_token(s, r, &found);
    if (r->output_status != QN_OK)
        memcpy(r->error, qn_error_text(), strlen(qn_error_text()) + 1);
}

static void emit_outputs(qn_scheduler *s)
{
    for (uint32_t i = 0; i < s->n_running; i++)
        if (s->running[i]->has_output)
            qn_request_emit_last(s, s->running[i]);
}

static void end_requests(qn_scheduler *s)
{
    for (uint32_t i = 0; i < s->n_running;) {
        qn_request *r = s->running[i];
        if (r->is_over)
            qn_scheduler_end(s, r, r->result.finish, QN_OK);
        else
            i++;
    }
}

void qn_scheduler_catch_up(qn_scheduler *s)
{
    emit_outputs(s);
    end_requests(s);
}

/* While a step is computed. The driver frees memory of a GPU when it is idle: that comes last, and requests that were waiting for it. */
static void work_beside(qn_scheduler *s)
{
    emit_outputs(s);
    qn_scheduler_admit_beside(s);
    end_requests(s);
    qn_scheduler_admit_beside(s);
}

/* ---- A step ---- */

/* Runs a step. While the device computes it, the host does what is left of the step before, and admits requests. */
static qn_status run(qn_scheduler *s, qn_step *step)
{
    qn_device *device = s->model->device;
    const size_t longest = fill_rows(s, step);
    qn_model_lock(s->model);
    qn_status status = device->vtable->reserve(device, s->params.max_rows, workspace_positions(s, longest));
    if (status == QN_OK)
        status = s->overlaps ? device->vtable->launch(device, step) : device->vtable->run(device, step);
    if (status == QN_OK && s->overlaps) {
        work_beside(s);
        status = device->vtable->finish(device);
    }
    qn_model_unlock(s->model);
    return status;
}

static void fail_pieces(qn_scheduler *s, qn_status status)
{
    char text[QN_ERROR_TEXT_MAX];
    memcpy(text, qn_error_text(), strlen(qn_error_text()) + 1);
    for (uint32_t i = 0; i < s->n_pieces; i++) {
        qn_request *r = s->pieces[i].request;
        r->memory->vtable->on_append(r->memory, r->memory->sequence->length);
        qn_scheduler_end(s, r, QN_FINISH_ERROR, qn_fail(status, "%s", text));
    }
}

/* A piece of one row that samples is a sequence that is decoded; so is the last token of a prompt, which costs as much. */
static size_t count_decoding(const qn_scheduler *s)
{
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_pieces; i++)
        n += s->pieces[i].n == 1;
    return n;
}

static void count_step(qn_scheduler *s, const qn_step *step, size_t n_generated, double seconds)
{
    const qn_pool_usage usage = qn_pool_get_usage(qn_pool_of(s->cache->pages ? s->cache->pages : s->cache->states));
    const qn_prefix_counts counts = s->kept ? qn_kept_counts(s->kept) : (qn_prefix_counts){ 0 };
    pthread_mutex_lock(&s->lock);
    qn_scheduler_counters *c = &s->counters;
    c->memory_bytes = usage.held;
    c->memory_limit = usage.budget;
    c->prefix_tokens = counts.pages * QN_PAGE;
    c->prefix_states = counts.states;
    c->prefix_host_bytes = counts.host_bytes;
    c->generated_tokens += n_generated;
    c->steps += step->n_rows > 0;
    c->rows += step->n_rows;
    c->step_seconds += step->n_rows ? seconds : 0;
    c->longest_step_seconds = step->n_rows && seconds > c->longest_step_seconds ? seconds : c->longest_step_seconds;
    pthread_mutex_unlock(&s->lock);
}

bool qn_scheduler_run_step(qn_scheduler *s)
{
    const double start = s->now();
    qn_step step = { 0 };
    size_t n_generated = 0, logit_row = 0;
    pthread_mutex_lock(&s->lock);
    const bool has_work = s->n_queued || s->n_running;
    pthread_mutex_unlock(&s->lock);
    if (!has_work)
        return false;
    qn_scheduler_admit(s);
    n_generated += begin_answers(s) + take_masked_tokens(s);
    compose(s);
    reserve_pieces(s);
    if (!s->n_pieces && !has_finished(s))
        qn_scheduler_await_masks(s);
    const size_t n_decoding = count_decoding(s);
    const qn_status status = s->n_pieces ? run(s, &step) : QN_OK;
    if (status != QN_OK)
        fail_pieces(s, status);
    for (uint32_t i = 0; status == QN_OK && i < s->n_pieces; i++) {
        const bool has_token = samples(&s->pieces[i]);
        n_generated += complete_piece(s, &s->pieces[i], has_token ? &s->requests[logit_row] : NULL);
        logit_row += has_token;
    }
    if (!s->overlaps || !s->n_pieces)
        qn_scheduler_catch_up(s);
    const double seconds = s->now() - start;
    if (status == QN_OK && step.n_rows)
        qn_step_times_add(&s->times, n_decoding, step.n_rows - n_decoding, seconds);
    count_step(s, &step, n_generated, seconds);
    return true;
}
