/* Runs steps on the device, and processes the tokens that they sample.
 *
 * While a step is in flight the next one is launched, if it needs no result on the host: a row whose token is sampled
 * by the step in flight reads the token on the device. When the first step is finished, a request may turn out to have
 * ended: its row in the next step is then void.
 *
 * All functions run on the step thread. The model's lock is held from the launch of a step until no step is in
 * flight. */
#include "scheduler/scheduler.h"

#include "base/memory.h"

#include <string.h>

/* ---- Tokens ---- */

void qn_request_fail(qn_request *r, qn_status status)
{
    r->is_over = true;
    r->failure = status;
    memcpy(r->error, qn_error_text(), strlen(qn_error_text()) + 1);
}

static bool ends_at(const qn_scheduler *s, const qn_request *r, qn_token token)
{
    for (size_t i = 0; i < r->lists->n_stop_tokens; i++)
        if (r->lists->stop_tokens[i] == token)
            return true;
    return !r->params.ignore_end && qn_token_is_end(s->model, token);
}

/* Returns true if the next step does not depend on emitting the last token: no stop string can end the request, no
 * budget can end its reasoning, and the step does not overwrite the data to emit. First tokens are emitted at once. */
static bool can_emit_later(const qn_scheduler *s, const qn_request *r)
{
    return s->overlaps && !s->generation && !r->params.n_stop && r->params.reasoning_budget < 0 &&
           r->params.n_logprobs < 0 && r->result.n_generated > 1;
}

/* Emits the last token. Sets *found to true if a stop string ended the request. */
static qn_status emit_token(qn_scheduler *s, qn_request *r, bool *found)
{
    const qn_token token = r->tokens[r->n_tokens - 1];
    r->has_output = false;
    return qn_request_emit(s, r, token, !(token >= 0 && ends_at(s, r, token)), found);
}

/* Copies the tokens of the shared prompt before the first token of the answer is added. */
static qn_status own_tokens(qn_request *r)
{
    qn_token *tokens = NULL;
    size_t capacity = 0;
    if (r->cap_tokens)
        return QN_OK;
    QN_TRY(qn_realloc_array(&tokens, &capacity, r->n_tokens + 1, sizeof *tokens, "tokens of a request"));
    memcpy(tokens, r->tokens, r->n_tokens * sizeof *tokens);
    r->tokens = tokens;
    r->cap_tokens = capacity;
    return QN_OK;
}

/* Adds a token. Sets is_over and result.finish if it is the last. */
static qn_status add_token(qn_scheduler *s, qn_request *r, qn_token token, bool is_forced)
{
    bool found = false;
    if (r->has_output)
        QN_TRY(emit_token(s, r, &found));
    QN_TRY(own_tokens(r));
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
    const bool has_all = r->params.max_tokens > 0 && r->result.n_generated >= (uint64_t)r->params.max_tokens;
    r->result.finish = is_end || found ? QN_FINISH_STOP : has_all ? QN_FINISH_LENGTH : QN_FINISH_CONTEXT;
    r->is_over = is_end || found || has_all || r->n_tokens > s->params.n_ctx;
    return QN_OK;
}

/* If the reasoning budget is spent, adds the words that end reasoning. The next step evaluates them like a prompt. */
static qn_status add_words(qn_scheduler *s, qn_request *r)
{
    qn_token *tokens;
    size_t n;
    if (r->params.reasoning_budget < 0 || r->params.max_tokens == 0 || r->is_over)
        return QN_OK;
    QN_TRY(qn_events_words(&r->events, s->model, &tokens, &n));
    qn_status status = QN_OK;
    for (size_t i = 0; status == QN_OK && i < n && !r->is_over; i++)
        status = add_token(s, r, tokens[i], true);
    qn_free_tokens(tokens);
    return status;
}

/* Adds a sampled token and what follows it, unless `status` is an error, with which the request ends. `sampled` is NULL
 * before the first. */
static void take_token(qn_scheduler *s, qn_request *r, const qn_sample_request *sampled, qn_status status)
{
    const uint64_t before = r->result.n_generated;
    if (status == QN_OK && sampled)
        status = qn_sample_status(sampled->best);
    if (status == QN_OK && sampled) {
        qn_sampler_observe(r->sampler, sampled);
        status = add_token(s, r, sampled->token, false);
    }
    if (status == QN_OK)
        status = add_words(s, r);
    s->n_generated += r->result.n_generated - before;
    if (status != QN_OK)
        qn_request_fail(r, status);
}

/* Adds the words that end reasoning to answers that have not begun: a budget may be spent before the first token. */
static void begin_answers(qn_scheduler *s)
{
    for (uint32_t i = 0; i < s->n_running; i++)
        if (!s->running[i]->result.n_generated && !s->running[i]->n_in_flight)
            take_token(s, s->running[i], NULL, QN_OK);
}

/* Adds tokens that were sampled under masks since the last step. */
static void take_masked_tokens(qn_scheduler *s)
{
    qn_sample_request sampled;
    qn_status status;
    for (uint32_t i = 0; i < s->n_running; i++)
        if (qn_request_take_masked(s->running[i], &sampled, &status))
            take_token(s, s->running[i], &sampled, status);
}

void qn_request_emit_last(qn_scheduler *s, qn_request *r)
{
    bool found;
    const qn_status status = emit_token(s, r, &found);
    if (status != QN_OK)
        qn_request_fail(r, status);
}

/* ---- Beside a step ---- */

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
        if (r->is_over && !r->n_in_flight)
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

/* Does host work during a step. A GPU's driver frees memory only when the GPU is idle: so freeing, and admission of
 * requests that wait for memory, come last. */
static void work_beside(qn_scheduler *s)
{
    emit_outputs(s);
    qn_scheduler_admit(s);
    end_requests(s);
    qn_scheduler_admit(s);
    if (s->kept)
        qn_kept_evict_ahead(s->kept);
}

/* ---- After a step ---- */

/* Counts the drafted tokens of a piece, n of which were accepted. */
static void count_draft(qn_scheduler *s, const qn_piece *piece, size_t n)
{
    qn_request *r = piece->request;
    if (!piece->is_proposal) {
        qn_draft_count(&r->drafts, piece->n_drafted, n);
        return;
    }
    r->result.n_drafted += piece->n_drafted;
    s->n_drafted += piece->n_drafted;
    if (r->drafts.drafter && !r->drafts.is_of_head && !r->drafts.is_of_model && r->drafts.drafter->vtable->accepted)
        r->drafts.drafter->vtable->accepted(r->drafts.drafter, n);
    if (qn_drafting_count(&s->drafting, r->drafts.is_of_head, piece->n_drafted, n) && s->params.on_log)
        qn_drafting_log(&s->drafting, s->model->drafting, s->params.on_log, s->params.user);
}

/* Adds the tokens sampled after the accepted tokens of a draft, up to a token that ends the request, or its
 * reasoning. */
static void take_draft(qn_scheduler *s, const qn_piece *piece, qn_sample_request *sampled)
{
    qn_request *r = piece->request;
    const size_t before = r->n_tokens;
    if (piece->is_proposal && r->drafts.simulated > 0)
        qn_draft_simulate(&r->drafts, r->tokens + before, piece->n_drafted, r->n_vocab, sampled);
    const size_t n = qn_draft_accepted(r->tokens + before, piece->n_drafted, sampled);
    size_t n_taken = 0;
    count_draft(s, piece, n);
    while (n_taken <= n && !r->is_over && r->n_tokens == before + n_taken) {
        if (n_taken && sampled[n_taken].logprobs)
            r->logprobs = *sampled[n_taken].logprobs;
        take_token(s, r, &sampled[n_taken++], QN_OK);
    }
    const size_t n_rejected = piece->n_drafted - (n_taken - 1);
    *(piece->is_proposal ? &r->result.n_accepted : &r->result.n_jumped) += n_taken - 1;
    s->n_accepted += piece->is_proposal ? n_taken - 1 : 0;
    if (piece->is_proposal)
        qn_draft_model_count(s, r, n_taken - 1);
    qn_sampler_take_back(r->sampler, n_rejected);
    qn_draft_learn(&r->drafts, &s->drafting.acceptances, before, r->tokens + before, n_taken);
    qn_memory_truncate(r->memory, r->memory->sequence->length - n_rejected);
    qn_request_keep_prefix(s, r);
}

/* Drops the draft of a request that is over or whose token was rejected. */
static void drop_draft(const qn_piece *piece)
{
    qn_memory *memory = piece->request->memory;
    if (!piece->n_drafted)
        return;
    qn_memory_truncate(memory, memory->sequence->length - piece->n_drafted);
    qn_sampler_take_back(piece->request->sampler, piece->n_drafted);
}

/* Returns true if the prefill of a session was cancelled: no token is then pending. */
static bool is_stopped_before(const qn_scheduler *s, const qn_request *r)
{
    return s->generation && !r->result.n_generated && atomic_load(&s->generation->session->cancelled);
}

/* Queues what a step has computed of a piece's prompt: progress, log probabilities, the embedding. A request without
 * them fails. */
static void take_prompt(qn_scheduler *s, const qn_scheduled *step, const qn_piece *piece,
                        const qn_sample_request *scores)
{
    qn_request *r = piece->request;
    if (r->is_over)
        return;
    qn_status status = qn_request_take_progress(s, r);
    if (status == QN_OK)
        status = qn_request_take_scores(s, r, scores, piece->n_scored);
    if (status == QN_OK)
        status = qn_request_take_normed(s, step, piece);
    if (status != QN_OK)
        qn_request_fail(r, status);
}

/* Processes the results of one piece; `results` are those of its scored rows, then its tokens. */
static void complete_piece(qn_scheduler *s, const qn_scheduled *step, const qn_piece *piece, qn_sample_request *results)
{
    qn_sample_request *sampled = piece->samples ? results + piece->n_scored : NULL;
    qn_request *r = piece->request;
    qn_sequence *sequence = r->memory->sequence;
    r->n_in_flight--;
    r->has_pending = false;
    if (piece->is_void) {
        qn_sequence_discard(sequence);
        return;
    }
    if (piece->is_advanced)
        qn_sequence_settle(sequence);
    else
        qn_memory_on_append(r->memory, sequence->length + piece->n);
    take_prompt(s, step, piece, results);
    const bool is_known = !r->is_over && sampled && !r->is_rejected;
    if (is_known && piece->n_drafted) {
        take_draft(s, piece, sampled);
        return;
    }
    drop_draft(piece);
    qn_request_keep_prefix(s, r);
    if (r->is_over)
        return;
    if (sampled && r->is_rejected) {
        qn_request_reject(s, r, sampled);
    } else if (sampled && !is_stopped_before(s, r)) {
        const size_t before = r->n_tokens;
        take_token(s, r, sampled, QN_OK);
        if (r->n_tokens > before)
            qn_draft_learn(&r->drafts, &s->drafting.acceptances, before, r->tokens + before, 1);
    } else if (sequence->length == r->n_tokens && r->params.max_tokens == 0) {
        r->result.finish = QN_FINISH_LENGTH;
        r->is_over = true;
    }
}

/* Marks rows in the next step as void if their request ended with this step. */
static void void_pieces(qn_scheduled *next)
{
    for (uint32_t i = 0; i < next->n_pieces; i++)
        next->pieces[i].is_void = next->pieces[i].request->is_over;
}

/* Counts what a step did, before its tokens are emitted: who has an answer finds it counted. */
static void count(qn_scheduler *s, const qn_scheduled *step)
{
    pthread_mutex_lock(&s->lock);
    qn_scheduler_counters *c = &s->counters;
    c->generated_tokens += s->n_generated;
    c->drafted_tokens += s->n_drafted;
    c->accepted_tokens += s->n_accepted;
    c->steps += step->step.n_rows > 0;
    c->rows += step->step.n_rows;
    c->ahead_steps += step->is_ahead;
    pthread_mutex_unlock(&s->lock);
    s->n_generated = s->n_drafted = s->n_accepted = 0;
}

static void complete(qn_scheduler *s, qn_scheduled *step, qn_scheduled *next)
{
    size_t logit_row = 0;
    qn_clients_charge(s, step);
    for (uint32_t i = 0; i < step->n_pieces; i++) {
        const qn_piece *piece = &step->pieces[i];
        complete_piece(s, step, piece, &step->requests[logit_row]);
        logit_row += piece->n_scored + (piece->samples ? 1 + piece->n_drafted : 0);
    }
    if (next)
        void_pieces(next);
    count(s, step);
}

/* Fails the requests of a failed step, with this error text: each ends when none of its rows are in flight. */
static void fail(const qn_scheduled *step, qn_status status, const char *text)
{
    for (uint32_t i = 0; i < step->n_pieces; i++) {
        step->pieces[i].request->n_in_flight = 0;
        qn_request_fail(step->pieces[i].request, qn_fail(status, "%s", text));
    }
}

/* Counts what a step took, and the memory that is held after it. */
static void count_costs(qn_scheduler *s, const qn_scheduled *scheduled, double seconds, double idle_seconds)
{
    const qn_step *step = &scheduled->step;
    const qn_pool_usage usage = qn_pool_get_usage(qn_pool_of(s->cache->pages ? s->cache->pages : s->cache->states));
    const qn_prefix_counts counts = s->kept ? qn_kept_counts(s->kept) : (qn_prefix_counts){ 0 };
    pthread_mutex_lock(&s->lock);
    qn_scheduler_counters *c = &s->counters;
    c->memory_bytes = usage.held;
    c->memory_limit = usage.budget;
    c->prefix_tokens = counts.pages * QN_PAGE;
    c->prefix_states = counts.states;
    c->prefix_host_bytes = counts.host_bytes;
    c->idle_seconds += idle_seconds;
    qn_places_update(s);
    c->step_seconds += step->n_rows ? seconds : 0;
    c->draft_passes += scheduled->n_passes;
    c->draft_seconds += scheduled->draft_seconds;
    c->longest_step_seconds = step->n_rows && seconds > c->longest_step_seconds ? seconds : c->longest_step_seconds;
    pthread_mutex_unlock(&s->lock);
}

/* ---- A step ---- */

/* Measures a step, from its composition or from the end of the previous step. */
static void measure(qn_scheduler *s, const qn_scheduled *step)
{
    const double now = s->now(), begin = step->start > s->last_end ? step->start : s->last_end, seconds = now - begin;
    const double idle = s->last_end > 0 ? step->idle_seconds : 0;
    s->last_end = now;
    const size_t n_others = step->step.n_rows - step->n_decoding, n_prompt = n_others - step->n_drafted;
    const double computed = seconds - step->lock_seconds - step->draft_seconds;
    if (n_prompt || !step->n_drafted) /* beside prompts, drafted rows cost as much as theirs */
        qn_step_times_add(&s->times, step->n_decoding, n_others, computed);
    if (!n_prompt)
        qn_row_costs_add(&s->drafting.costs, step->step.n_rows, computed);
    qn_draft_model_measure(s, step, computed);
    count_costs(s, step, seconds, idle);
}

static void enter_flight(qn_scheduled *step, bool is_ahead)
{
    step->is_ahead = is_ahead;
    for (uint32_t i = 0; i < step->n_pieces; i++)
        step->pieces[i].request->n_in_flight++;
}

/* Launches a step, or runs it if the device computes on the host. Takes the model's lock, and keeps it if the step is
 * then in flight. */
static qn_status launch(qn_scheduler *s, qn_scheduled *step)
{
    qn_device *device = s->model->device;
    s->positions = qn_scheduler_positions(s, step);
    qn_scheduler_fill_rows(s, step);
    const double start = s->now();
    qn_model_lock(s->model);
    step->lock_seconds = s->now() - start;
    qn_status status = qn_model_check(s->model);
    if (status == QN_OK)
        status = device->vtable->reserve(device, s->params.max_rows, s->positions);
    if (status == QN_OK)
        status = s->overlaps ? device->vtable->launch(device, &step->step) : device->vtable->run(device, &step->step);
    if (status == QN_OK && !s->overlaps)
        status = qn_model_check(s->model);
    enter_flight(step, false);
    s->flight = status == QN_OK && s->overlaps ? step : NULL;
    if (!s->flight)
        qn_model_unlock(s->model);
    return status;
}

/* Composes and launches a step when none is in flight. False if there are no rows. */
static bool begin(qn_scheduler *s, qn_scheduled *step, qn_status *status)
{
    step->start = s->now();
    qn_scheduler_end_late(s);
    qn_scheduler_admit(s);
    begin_answers(s);
    take_masked_tokens(s);
    end_requests(s);
    qn_scheduler_compose(s, step);
    qn_scheduler_reserve(s, step);
    if (step->n_pieces)
        *status = launch(s, step);
    return step->n_pieces > 0;
}

/* Returns true if the next step needs no token of this step on the host. */
static bool may_run_ahead(qn_scheduler *s, const qn_scheduled *step)
{
    if ((s->params.no_thread && !s->params.run_ahead) || s->n_running > s->model->device->ahead ||
        qn_model_is_awaited(s->model) || qn_scheduler_wants_place(s))
        return false;
    for (uint32_t i = 0; i < s->n_running; i++)
        if (qn_request_is_scored(s->running[i]))
            return false;
    for (uint32_t i = 0; i < step->n_pieces; i++)
        if (step->pieces[i].n_drafted ||
            (step->pieces[i].samples && qn_request_waits_for_token(step->pieces[i].request)) ||
            (step->pieces[i].samples &&
             qn_request_expects_proposal(step->pieces[i].request, &s->drafting, step->step.n_rows)))
            return false;
    return !qn_draft_model_expects(s, step);
}

static bool is_last_token(const qn_scheduler *s, const qn_request *r)
{
    return (r->params.max_tokens > 0 && r->result.n_generated + 1 >= (uint64_t)r->params.max_tokens) ||
           r->n_tokens + 1 > s->params.n_ctx;
}

/* Counts the rows of a step in flight as appended. Returns false if one of its states is to be kept: that state becomes
 * shared when the step has ended, and the next fold must know that. */
static bool advance(const qn_scheduler *s, qn_scheduled *step)
{
    bool keeps_none = true;
    for (uint32_t i = 0; i < step->n_pieces; i++) {
        qn_piece *piece = &step->pieces[i];
        if (piece->is_void || piece->request->is_over)
            continue;
        qn_sequence_advance(piece->request->memory->sequence);
        piece->is_advanced = true;
        piece->request->has_pending = piece->samples && !is_last_token(s, piece->request);
        keeps_none = keeps_none && !qn_request_keeps_state(s, piece->request);
    }
    return keeps_none;
}

/* Fails the requests of a step whose launch failed, because part of it may have been computed. */
static void fail_launch(qn_scheduled *step, qn_status status)
{
    for (uint32_t i = 0; i < step->n_pieces; i++)
        qn_request_fail(step->pieces[i].request, status);
    qn_scheduler_unreserve(step);
}

/* Launches a step after the one in flight, or returns NULL. */
static qn_scheduled *launch_ahead(qn_scheduler *s)
{
    qn_device *device = s->model->device;
    qn_scheduled *next = s->flight == s->steps ? &s->steps[1] : s->steps;
    if (!may_run_ahead(s, s->flight))
        return NULL;
    next->start = s->now();
    next->lock_seconds = 0;
    begin_answers(s);
    take_masked_tokens(s);
    if (!advance(s, s->flight))
        return NULL;
    qn_scheduler_compose(s, next);
    if (!next->n_pieces || !qn_scheduler_reserve_ahead(next))
        return NULL;
    if (qn_scheduler_positions(s, next) > s->positions) {
        qn_scheduler_unreserve(next);
        return NULL;
    }
    qn_scheduler_fill_rows(s, next);
    const qn_status status = device->vtable->launch(device, &next->step);
    if (status != QN_OK) {
        fail_launch(next, status);
        return NULL;
    }
    enter_flight(next, true);
    return next;
}

static bool has_prompts(const qn_scheduler *s)
{
    for (uint32_t i = 0; i < s->n_running; i++)
        if (qn_request_rows_left(s->running[i]) > 1)
            return true;
    return false;
}

/* Samples in the step in flight and finishes it, then releases the model's lock unless another step is in flight.
 * Meanwhile it launches the next step and does the remaining host work of the previous one. The previous step's tokens
 * are emitted first if the next step may have rows of prompts: such a step has many launches, and if the driver's queue
 * is full, launching it takes as long as the step in flight. */
static qn_status finish(qn_scheduler *s, qn_scheduled **next)
{
    qn_device *device = s->model->device;
    qn_scheduler_end_late(s);
    qn_status status = device->vtable->sample(device);
    if (status == QN_OK) {
        if (has_prompts(s))
            emit_outputs(s);
        *next = launch_ahead(s);
        work_beside(s);
        status = device->vtable->finish(device);
        s->flight->idle_seconds = device->idle_seconds;
    }
    if (status == QN_OK)
        status = qn_model_check(s->model);
    if (status != QN_OK && *next) {
        char text[QN_ERROR_TEXT_MAX];
        memcpy(text, qn_error_text(), strlen(qn_error_text()) + 1);
        (void)device->vtable->finish(device);
        (void)qn_fail(status, "%s", text);
    }
    s->flight = status == QN_OK ? *next : NULL;
    if (!s->flight)
        qn_model_unlock(s->model);
    return status;
}

static void fail_steps(const qn_scheduled *step, const qn_scheduled *next, qn_status status)
{
    char text[QN_ERROR_TEXT_MAX];
    memcpy(text, qn_error_text(), strlen(qn_error_text()) + 1);
    fail(step, status, text);
    if (next)
        fail(next, status, text);
}

bool qn_scheduler_run_step(qn_scheduler *s)
{
    qn_scheduled *step = s->flight ? s->flight : s->steps, *next = NULL;
    qn_status status = QN_OK;
    pthread_mutex_lock(&s->lock);
    const bool has_work = s->n_queued || s->n_running;
    pthread_mutex_unlock(&s->lock);
    if (!has_work)
        s->last_end = 0;
    if (!has_work)
        return false;
    if (!s->flight && !begin(s, step, &status)) {
        if (!qn_scheduler_has_finished(s))
            qn_scheduler_await_masks(s);
        s->last_end = 0;
        qn_scheduler_catch_up(s);
        return true;
    }
    if (s->flight)
        status = finish(s, &next);
    if (status == QN_OK)
        complete(s, step, next);
    else
        fail_steps(step, next, status);
    if (!s->overlaps || status != QN_OK)
        qn_scheduler_catch_up(s);
    if (status == QN_OK)
        measure(s, step);
    return true;
}
