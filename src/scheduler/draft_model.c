/* Proposals of the draft model, for all sequences of a step together. Before a step is run, the draft model evaluates
 * what is new of each text, and then its own likeliest tokens, one a step, as long as that is expected to pay
 * (engine/spec/draft_plan.h). A text that is long and new, such as a prompt, is evaluated in pieces before the steps of
 * its answer, none of which is longer than a step.
 *
 * All functions run on the step thread, without the model's lock, which they take for the draft model's steps. */
#include "scheduler/scheduler.h"

#include "base/append.h"
#include "base/memory.h"

#include <string.h>

/* Rows of a text that are not evaluated with those of the other texts, but before, in pieces. */
enum { CATCH_UP_ROWS = 16 };

/* The part of the draft model's memory that kept recurrent states may take: one in STATES_SHARE. */
enum { STATES_SHARE = 4 };

/* The longest piece, in steps without drafts: of a text alone, and beside others. */
static const double ALONE = 1, BESIDE = 0.25;

/* Steps without drafts after which the draft model is tried although it does not seem to pay: its times may have been
 * those of a busy machine. The number doubles while it does not. */
enum { FIRST_TRIAL = 64, LAST_TRIAL = 4096 };

/* The longest time that is expected of a step of the draft model before one was measured, relative to the model's. */
static const double MOST_GUESSED = 0.25;

/* How fast the chance of a draft model that was not tried grows back to what is expected of an unknown one. */
static const float RECOVERY = 1.0f / 2048, UNKNOWN = 0.7f;

/* A text that may get a proposal. */
struct ask {
    qn_request *request;
    size_t n_new;   /* tokens that the draft model has not evaluated */
    size_t most;    /* tokens of the proposal */
    float reached;  /* chance that all of it is accepted */
    bool continues; /* it gets another token */
    qn_token last;
    size_t n;
    qn_token tokens[QN_DRAFT_TOKENS];
    uint8_t classes[QN_DRAFT_TOKENS];
    float chances[QN_DRAFT_TOKENS];
};

struct qn_draft_model {
    qn_model *draft;
    qn_drafting drafting;      /* a copy of the draft model's */
    qn_kept *kept;             /* prefixes of texts; NULL with no_prefix_cache */
    struct ask *asks;          /* [max_sequences] */
    qn_draft_rows *rows;       /* [max_sequences] */
    size_t n_without, n_trial; /* steps without drafts since the last; until the next trial */
    double guess;              /* share of a step of the model that a step of the draft model takes, by their weights */
    double lap;                /* when the draft model's last step ended */
    size_t n_steps;            /* of the draft model, before the step being composed */
    size_t n_accepted;         /* of the draft model's tokens, in the step that ends */
    bool has_failed;
};

/* ---- Creation ---- */

static qn_status create_kept(qn_scheduler *s, qn_model *draft)
{
    qn_memory_params params = { .n_ctx = 1, .n_batch = 1 };
    const qn_kv_format *format;
    const qn_cache *cache;
    QN_TRY(qn_model_kv_format(draft, NULL, &format));
    QN_TRY(qn_model_find_cache(draft, format, &params, &cache));
    const uint64_t budget = qn_pool_get_usage(qn_pool_of(cache->pages ? cache->pages : cache->states)).budget;
    return qn_kept_create(&draft->kept, cache, budget / STATES_SHARE, 0, &s->draft_model->kept);
}

qn_status qn_draft_model_create(qn_scheduler *s)
{
    qn_model *draft = s->model->draft;
    const uint32_t n = s->params.max_sequences;
    if (!draft)
        return QN_OK;
    QN_TRY(qn_alloc(&s->draft_model, 1, sizeof *s->draft_model, "draft model"));
    QN_TRY(qn_alloc(&s->draft_model->asks, n, sizeof *s->draft_model->asks, "draft model"));
    QN_TRY(qn_alloc(&s->draft_model->rows, n, sizeof *s->draft_model->rows, "draft model"));
    if (!s->params.no_prefix_cache)
        QN_TRY(create_kept(s, draft));
    qn_drafting_load(draft->drafting, &s->draft_model->drafting);
    qn_draft_record_begin(&s->draft_model->drafting.record);
    s->draft_model->draft = draft;
    s->draft_model->n_trial = FIRST_TRIAL;
    const double guess = (double)qn_plan_weight_bytes(&draft->plan) / (double)qn_plan_weight_bytes(&s->model->plan);
    s->draft_model->guess = guess < MOST_GUESSED ? guess : MOST_GUESSED;
    return QN_OK;
}

void qn_draft_model_free(qn_scheduler *s)
{
    struct qn_draft_model *p = s->draft_model;
    if (!p)
        return;
    if (p->draft)
        qn_drafting_store(&p->drafting, p->draft->drafting);
    qn_kept_free(&s->model->draft->kept, p->kept);
    qn_free(p->asks);
    qn_free(p->rows);
    qn_free(p);
    s->draft_model = NULL;
}

/* ---- Texts ---- */

/* The scope in which prefixes of a request's text are shared; NULL: they are not. As for answers that are drafted from
 * (engine/spec/ngram.h), the scope "" is nobody's, since strangers may share it. */
static const char *scope_of(const qn_scheduler *s, const qn_request *r)
{
    const char *scope = r->lists->scope;
    return s->draft_model->kept && scope && *scope ? scope : NULL;
}

/* Takes over what the draft model has evaluated of another text with the same beginning. */
static void adopt(qn_scheduler *s, const qn_request *r, qn_draft_sequence *sequence)
{
    qn_memory *memory = qn_draft_sequence_memory(sequence);
    uint32_t matched;
    if (scope_of(s, r) && qn_kept_adopt(&s->model->draft->kept, s->draft_model->kept, scope_of(s, r),
                                        qn_token_ids(r->tokens), r->n_tokens, memory, &matched) == QN_OK)
        (void)qn_draft_sequence_take(sequence, r->tokens);
}

/* Keeps what the draft model has evaluated of a text for later ones. */
static void keep(qn_scheduler *s, const qn_request *r)
{
    qn_draft_sequence *sequence = r->drafts.sequence;
    size_t n_held;
    if (r->drafts.borrows || !scope_of(s, r))
        return;
    (void)qn_draft_sequence_follow(sequence, r->tokens, r->n_tokens, &n_held);
    if (n_held)
        qn_kept_state(s->draft_model->kept, scope_of(s, r), qn_token_ids(r->tokens), qn_draft_sequence_memory(sequence),
                      QN_STATE_MARK);
}

/* The chance with which a text begins: it may be easier than others. */
static float first_chance(const qn_draft_record *record, const qn_drafts *d)
{
    const float chance = record->chance < UNKNOWN ? (record->chance + UNKNOWN) / 2 : record->chance;
    return d->simulated > 0 ? d->simulated : chance;
}

/* Begins the sequence of a request: that of its session, which may hold a part of the text, or a new one. */
static bool begin_sequence(qn_scheduler *s, qn_request *r)
{
    qn_drafts *d = &r->drafts;
    qn_session *session = s->generation ? s->generation->session : NULL;
    qn_draft_sequence **sequence = session ? &session->draft : &d->sequence;
    if (!*sequence && qn_draft_sequence_create(s->model->draft_runner, sequence) != QN_OK)
        return false;
    if (!session)
        adopt(s, r, *sequence);
    qn_draft_sequence_restart(*sequence);
    d->sequence = *sequence;
    d->borrows = session;
    if (d->model_chance > 0) /* it was set aside */
        return true;
    const qn_draft_record *record = &s->draft_model->drafting.record;
    memcpy(d->acceptance.chances + QN_DRAFT_MODEL_CLASS, record->chances, sizeof record->chances);
    d->model_chance = first_chance(record, d);
    return true;
}

void qn_draft_model_leave(qn_scheduler *s, qn_request *r)
{
    qn_drafts *d = &r->drafts;
    if (d->sequence)
        keep(s, r);
    if (d->sequence && d->simulated <= 0) {
        qn_draft_record *record = &s->draft_model->drafting.record;
        memcpy(record->chances, d->acceptance.chances + QN_DRAFT_MODEL_CLASS, sizeof record->chances);
        record->chance = d->model_chance;
    }
    qn_drafts_leave(d);
}

/* Whether the draft model may propose tokens after a piece: it decodes, and has begun its answer. */
static bool may_draft(const qn_piece *piece)
{
    const qn_request *r = piece->request;
    return piece->samples && piece->n == 1 && !piece->n_drafted && !r->n_in_flight && r->drafts.follows &&
           r->cap_tokens && !r->rope_offset;
}

/* Adds the text of a piece, if tokens can be drafted after it and the draft model can evaluate it. */
static void add_ask(qn_scheduler *s, qn_request *r, size_t most, size_t *n)
{
    struct ask *ask = &s->draft_model->asks[*n];
    size_t n_held;
    if (r->drafts.looks_up)
        (void)qn_request_propose(r, QN_DRAFT_TOKENS);
    most = qn_request_draft_room(r, most < r->drafts.most ? most : r->drafts.most);
    if (!most)
        return;
    if ((!r->drafts.sequence && !begin_sequence(s, r)) ||
        !qn_draft_sequence_follow(r->drafts.sequence, r->tokens, r->n_tokens, &n_held)) {
        r->drafts.follows = false; /* else steps would wait for its proposals (qn_draft_model_expects) */
        return;
    }
    *ask = (struct ask){ .request = r, .n_new = r->n_tokens - n_held, .reached = 1 };
    const size_t rows = qn_draft_sequence_most(r->drafts.sequence, ask->n_new);
    ask->most = rows < most ? rows + 1 : most; /* the last token of a proposal is not evaluated */
    ++*n;
}

/* ---- Steps of the draft model ---- */

static void on_step(void *scheduler, size_t n_rows)
{
    const qn_scheduler *s = scheduler;
    struct qn_draft_model *p = s->draft_model;
    qn_draft_record *record = &p->drafting.record;
    const double now = s->now(), seconds = now - p->lap;
    p->lap = now;
    p->n_steps++;
    qn_row_costs_add(&p->drafting.costs, n_rows, seconds);
    if (n_rows >= CATCH_UP_ROWS) {
        const double a_row = seconds / (double)n_rows;
        record->row_seconds += (a_row - record->row_seconds) * (record->row_seconds > 0 ? 0.25 : 1);
    }
}

/* Runs rows of the draft model. After an error it proposes nothing more. */
static bool run(qn_scheduler *s, qn_draft_rows *rows, size_t n)
{
    struct qn_draft_model *p = s->draft_model;
    p->lap = s->now();
    qn_status status = qn_draft_runner_run(s->model->draft_runner, rows, n, on_step, s);
    if (status == QN_OK)
        status = qn_model_check(p->draft);
    if (status == QN_OK)
        return true;
    char line[QN_ERROR_TEXT_MAX + 64];
    p->has_failed = true;
    if (s->params.on_log && qn_print(line, sizeof line, "draft model: it is not used any more: %s", qn_error_text()))
        s->params.on_log(s->params.user, line);
    return false;
}

/* Takes the next token of a proposal. */
static void take(const qn_scheduler *s, struct ask *ask, const qn_draft_rows *rows)
{
    const qn_drafts *d = &ask->request->drafts;
    ask->continues = false;
    if (rows->failed || rows->token < 0 || (size_t)rows->token >= ask->request->n_vocab)
        return;
    const uint8_t class = qn_draft_class(rows->chance);
    const float chance = d->simulated > 0 ? d->simulated : d->acceptance.chances[class];
    ask->tokens[ask->n] = ask->last = rows->token;
    ask->classes[ask->n] = class;
    ask->chances[ask->n++] = chance;
    ask->reached *= chance;
    ask->continues = ask->n < ask->most && (ask->request->params.ignore_end || !qn_token_is_end(s->model, rows->token));
}

/* Evaluates the new tokens of all texts, and then the proposed ones, until no text needs more. plan: NULL: as many
 * tokens as may be. */
static void propose(qn_scheduler *s, size_t n, const qn_draft_case *c, const qn_draft_plan *plan)
{
    struct qn_draft_model *p = s->draft_model;
    for (size_t i = 0; i < n; i++)
        p->asks[i].continues = true;
    for (size_t step = 0, n_left = n; n_left; step++) {
        struct ask *of[QN_STEP_DRAFTED];
        size_t n_rows = 0;
        for (size_t i = 0; i < n && n_rows < QN_STEP_DRAFTED; i++) {
            struct ask *ask = &p->asks[i];
            const qn_request *r = ask->request;
            if (!ask->continues || (step && plan && !qn_draft_plan_continues(c, plan, n_left, ask->reached)))
                continue;
            of[n_rows] = ask;
            p->rows[n_rows++] = (qn_draft_rows){ .sequence = r->drafts.sequence,
                                                 .tokens = step ? &ask->last : r->tokens + (r->n_tokens - ask->n_new),
                                                 .n = step ? 1 : ask->n_new,
                                                 .samples = true };
        }
        if (!n_rows || !run(s, p->rows, n_rows))
            return;
        n_left = 0;
        for (size_t i = 0; i < n_rows; i++) {
            take(s, of[i], &p->rows[i]);
            n_left += of[i]->continues;
        }
    }
}

/* Makes what was proposed the request's proposal, unless its own drafter's is likelier to be accepted. */
static void offer(const struct ask *ask)
{
    qn_drafts *d = &ask->request->drafts;
    const size_t n_own = d->proposed_after == ask->request->n_tokens ? d->proposal.n : 0;
    if (!ask->n || qn_draft_expected(d->chances, n_own) >= qn_draft_expected(ask->chances, ask->n))
        return;
    d->proposal.n = ask->n;
    memcpy(d->proposal.tokens, ask->tokens, ask->n * sizeof *ask->tokens);
    memcpy(d->proposal.classes, ask->classes, ask->n * sizeof *ask->classes);
    memcpy(d->chances, ask->chances, ask->n * sizeof *ask->chances);
    d->proposed_after = ask->request->n_tokens;
    d->is_of_model = true;
}

/* ---- What pays ---- */

/* Evaluates a part of the first text of which much is new. Texts that then have few new tokens stay in the list. */
static size_t catch_up(qn_scheduler *s, size_t n, const qn_draft_case *c)
{
    struct qn_draft_model *p = s->draft_model;
    const double step = qn_row_costs_seconds(c->costs, c->n_rows), a_row = p->drafting.record.row_seconds,
                 seconds = step * (s->n_running > 1 ? BESIDE : ALONE),
                 a_guess = a_row > 0 ? a_row : qn_draft_seconds(c, CATCH_UP_ROWS) / CATCH_UP_ROWS;
    const size_t most = (size_t)(seconds / a_guess), rows = most > CATCH_UP_ROWS ? most : CATCH_UP_ROWS;
    size_t n_left = 0;
    bool has_run = false;
    for (size_t i = 0; i < n; i++) {
        struct ask *ask = &p->asks[i];
        const qn_request *r = ask->request;
        if (ask->n_new > CATCH_UP_ROWS) {
            const size_t now = ask->n_new - 1 < rows ? ask->n_new - 1 : rows;
            if (has_run || !qn_draft_record_allows(&p->drafting.record, a_guess * (double)ask->n_new, step))
                continue;
            qn_draft_rows piece = { .sequence = r->drafts.sequence,
                                    .tokens = r->tokens + (r->n_tokens - ask->n_new),
                                    .n = now };
            has_run = true;
            if (!run(s, &piece, 1))
                return 0;
            ask->n_new -= now;
        }
        if (ask->n_new <= CATCH_UP_ROWS)
            p->asks[n_left++] = *ask;
    }
    return n_left;
}

/* Describes texts of which little is new: as a rule two tokens, the last ones of a draft that was accepted. More is
 * evaluated once only, and does not decide whether drafts pay. */
static void describe(qn_scheduler *s, size_t n, qn_draft_case *c)
{
    float sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += s->draft_model->asks[i].request->drafts.model_chance;
    c->n = n;
    c->first_rows = 2 * n;
    c->chance = n ? sum / (float)n : 0;
}

/* The chance of a text that is not drafted now grows. */
static void recover(qn_drafts *d)
{
    d->model_chance += d->model_chance < UNKNOWN ? RECOVERY * (UNKNOWN - d->model_chance) : 0;
}

/* Finds a plan, of one step where it is time for a trial. */
static qn_draft_plan find_plan(qn_scheduler *s, const qn_draft_case *c)
{
    struct qn_draft_model *p = s->draft_model;
    qn_draft_plan plan = qn_draft_plan_find(c);
    if (plan.depth) {
        p->n_without = 0;
        p->n_trial = FIRST_TRIAL;
    } else if (++p->n_without >= p->n_trial) {
        p->n_without = 0;
        p->n_trial = p->n_trial < LAST_TRIAL ? p->n_trial * 2 : LAST_TRIAL;
        plan = (qn_draft_plan){ .depth = 1, .rate = (double)c->n_rows / qn_row_costs_seconds(c->costs, c->n_rows) };
    }
    return plan;
}

/* Proposes where it pays. */
static void weigh(qn_scheduler *s, size_t n, size_t n_rows, size_t most)
{
    struct qn_draft_model *p = s->draft_model;
    const double step = qn_row_costs_seconds(&s->drafting.costs, n_rows);
    qn_draft_case c = { .costs = &s->drafting.costs,
                        .draft_costs = &p->drafting.costs,
                        .guess = p->guess * step,
                        .n_rows = n_rows,
                        .most = most / n < QN_DRAFT_TOKENS ? most / n : QN_DRAFT_TOKENS };
    describe(s, n, &c);
    qn_draft_plan plan = find_plan(s, &c);
    if (!plan.depth || !qn_draft_record_allows(&p->drafting.record, 0, step)) {
        for (size_t i = 0; i < n; i++)
            recover(&p->asks[i].request->drafts);
        return;
    }
    n = catch_up(s, n, &c);
    describe(s, n, &c);
    if (!n)
        return;
    propose(s, n, &c, &plan);
    for (size_t i = 0; i < n; i++)
        offer(&p->asks[i]);
}

void qn_draft_model_run(qn_scheduler *s, qn_scheduled *to, size_t n_rows, size_t most)
{
    struct qn_draft_model *p = s->draft_model;
    size_t n = 0, n_always = 0;
    if (!p || p->has_failed || !most)
        return;
    for (uint32_t i = 0; i < to->n_pieces && n < QN_STEP_DRAFTED; i++) {
        qn_request *r = to->pieces[i].request;
        const size_t before = n;
        if (may_draft(&to->pieces[i]) && (r->drafts.always || n_rows == to->n_decoding))
            add_ask(s, r, most, &n);
        n_always += n > before && r->drafts.always;
    }
    if (!n || (n_always < n && !qn_row_costs_is_known(&s->drafting.costs, n_rows)))
        return;
    const double start = s->now();
    p->n_steps = 0;
    qn_model_lock(s->model);
    if (n_always == n) {
        propose(s, n, NULL, NULL);
        for (size_t i = 0; i < n; i++)
            offer(&p->asks[i]);
    } else {
        weigh(s, n, n_rows, most);
    }
    qn_model_unlock(s->model);
    to->draft_seconds = p->n_steps ? s->now() - start : 0;
    to->n_passes = p->n_steps;
}

/* Whether steps of the draft model are expected to pay for n texts, or are to be tried again. */
static bool expects_plan(qn_scheduler *s, size_t n, size_t n_rows, float chance)
{
    struct qn_draft_model *p = s->draft_model;
    const qn_row_costs *costs = &s->drafting.costs;
    if (!qn_row_costs_is_known(costs, n_rows))
        return false;
    const double step = qn_row_costs_seconds(costs, n_rows);
    const size_t most = QN_STEP_DRAFTED / n;
    const qn_draft_case c = { .costs = costs,
                              .draft_costs = &p->drafting.costs,
                              .guess = p->guess * step,
                              .n_rows = n_rows,
                              .n = n,
                              .first_rows = 2 * n,
                              .chance = chance,
                              .most = most < QN_DRAFT_TOKENS ? most : QN_DRAFT_TOKENS };
    if (!qn_draft_record_allows(&p->drafting.record, 0, step))
        return false;
    if (qn_draft_plan_find(&c).depth || p->n_without + 1 >= p->n_trial)
        return true;
    p->n_without++;
    return false;
}

bool qn_draft_model_expects(qn_scheduler *s, const qn_scheduled *step)
{
    struct qn_draft_model *p = s->draft_model;
    size_t n = 0;
    float sum = 0;
    if (!p || p->has_failed || step->step.n_rows != step->n_decoding)
        return false;
    for (uint32_t i = 0; i < step->n_pieces && n < QN_STEP_DRAFTED; i++) {
        const qn_request *r = step->pieces[i].request;
        if (!step->pieces[i].samples || !r->drafts.follows || r->rope_offset)
            continue;
        if (r->drafts.always)
            return true;
        sum += r->drafts.sequence ? r->drafts.model_chance : first_chance(&p->drafting.record, &r->drafts);
        n++;
    }
    if (!n || expects_plan(s, n, step->step.n_rows, sum / (float)n))
        return n > 0;
    for (uint32_t i = 0; i < step->n_pieces; i++)
        if (step->pieces[i].request->drafts.sequence)
            recover(&step->pieces[i].request->drafts);
    return false;
}

void qn_draft_model_count(qn_scheduler *s, const qn_request *r, size_t n_accepted)
{
    if (s->draft_model && r->drafts.is_of_model)
        s->draft_model->n_accepted += n_accepted;
}

void qn_draft_model_measure(qn_scheduler *s, const qn_scheduled *step, double seconds)
{
    struct qn_draft_model *p = s->draft_model;
    const size_t n = step->n_decoding, n_rows = step->step.n_rows;
    const qn_row_costs *costs = &s->drafting.costs;
    if (!p)
        return;
    double with = step->draft_seconds, without = 0, alone = 0;
    if (n && n_rows == n + step->n_drafted && qn_row_costs_is_known(costs, n)) {
        alone = qn_row_costs_seconds(costs, n);
        with += p->n_accepted ? qn_row_costs_seconds(costs, n_rows) - alone : 0; /* of expected times, as `without` */
        without = alone * (double)p->n_accepted / (double)n;
    }
    qn_draft_record_add(&p->drafting.record, seconds + step->draft_seconds, without - with, alone);
    p->n_accepted = 0;
}
