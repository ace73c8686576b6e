/* Admission: chooses the requests to evaluate next. All functions run on the step thread.
 *
 * Clients share the max_sequences places evenly. The next request comes from the client with the fewest places and,
 * among these, the fewest rows used (deficit round robin, in rows). Of a client's requests, the one of highest priority
 * is next. It is admitted if memory holds its tokens in addition to the tokens that running requests still need to
 * append. If it does not fit, it waits and blocks others, except up to MAX_PASSED smaller requests of clients without a
 * place.
 *
 * A client with at least two places fewer than another does not wait: the youngest request of the other client is set
 * aside. Afterwards neither client has two more than the other, so they do not alternate. If there are more clients
 * than places, clients do alternate: a request that is the only one of its client gives up its place to a client
 * without a place after TURN_ROWS rows, but not before it has progressed since its last admission. So many answers of
 * one client delay another client's request only until the end of a step.
 *
 * If the pool is still full, because sequences grow, the youngest request of the client that holds most of it is set
 * aside, at most QN_MAX_SET_ASIDE times. Of the requests that reached this limit only one runs at a time: it can take
 * the memory of all others, so it finishes. Giving up a place does not count towards the limit. */
#include "scheduler/scheduler.h"

#include <string.h>

enum { TURN_ROWS = 128, MAX_PASSED = 64 };

/* ---- Memory ---- */

static uint64_t item_bytes(const qn_pool_class *class)
{
    return class ? qn_pool_stride(class) : 0;
}

/* Returns the bytes of pages that a sequence of `held` tokens still needs for its request's tokens and one more. */
static uint64_t missing_bytes(const qn_scheduler *s, const qn_request *r, size_t held)
{
    const size_t pages = (r->n_tokens + QN_PAGE) / QN_PAGE - held / QN_PAGE;
    return pages * item_bytes(s->cache->pages) + 2 * item_bytes(s->cache->f16_pages);
}

/* Returns true if a request's tokens fit in memory, after eviction of kept prefixes. */
static bool fits(const qn_scheduler *s, const qn_request *r)
{
    qn_pool_class *class = s->cache->pages ? s->cache->pages : s->cache->states;
    uint64_t need = missing_bytes(s, r, r->memory->sequence->length) + 2 * item_bytes(s->cache->states);
    for (uint32_t i = 0; i < s->n_running; i++) {
        const qn_sequence *q = s->running[i]->memory->sequence;
        need += missing_bytes(s, s->running[i], q->length + q->reserved); /* reserved: for the next step, while one is
                                                                             in flight */
    }
    for (;;) {
        const uint64_t available = qn_pool_available(class) * item_bytes(class);
        if (available >= need)
            return true;
        for (uint64_t freed = 0; freed < need - available; freed += item_bytes(class))
            if (!qn_kept_evict(&s->model->kept))
                return false;
    }
}

/* ---- Who is next ---- */

static double priority_of(const qn_request *r, double now)
{
    return r->params.priority + (now - r->submitted);
}

/* The next request in a client's queue. NULL: no request of it may begin. The caller holds the lock. */
static qn_request *first_of(const qn_scheduler *s, const qn_client *c, double now)
{
    qn_request *best = NULL;
    for (qn_request *r = c->queue; r; r = r->next) {
        if (qn_client_withdraws(s, r))
            continue;
        best = best ? best : r;
        const double difference = priority_of(r, now) - priority_of(best, now);
        if (difference > 0 || (difference == 0 && r->id < best->id))
            best = r;
    }
    return best;
}

static bool is_before(const qn_client *a, const qn_client *b)
{
    return a->n_running != b->n_running ? a->n_running < b->n_running : a->rows < b->rows;
}

/* ---- Places ---- */

/* Returns true if a running request has had enough rows since it got its place: TURN_ROWS, and twice those that it had
 * to evaluate again because it had lost its place before. */
static bool has_had_turn(const qn_request *r)
{
    return r->n_turn >= TURN_ROWS && r->n_turn >= 2 * r->n_again;
}

/* Returns true if a client may take the place of another client's running request. */
static bool may_take(const qn_client *c, const qn_request *place)
{
    const qn_client *owner = place->client;
    if (owner == c || place->is_over)
        return false;
    return owner->n_running >= c->n_running + 2 || (!c->n_running && has_had_turn(place));
}

/* Returns true if `a` should give up its place before `b`: the request of the client with more places, then with more
 * rows used, then the younger one. */
static bool is_rather(const qn_request *a, const qn_request *b)
{
    const qn_client *one = a->client, *other = b->client;
    if (one->n_running != other->n_running)
        return one->n_running > other->n_running;
    return one == other ? a->id > b->id : one->rows > other->rows;
}

static bool is_full(const qn_scheduler *s)
{
    return s->n_running == s->params.max_sequences;
}

/* The running request that gives up its place for a client, or, if places are free, its memory for a request of
 * n_tokens. A client takes memory only from a client that holds at least as much as it would then hold itself. NULL: no
 * such request. The caller holds the lock. */
static qn_request *find_place(const qn_scheduler *s, const qn_client *c, size_t n_tokens)
{
    qn_request *place = NULL;
    if (s->n_clients < 2)
        return NULL;
    qn_clients_count_held(s);
    const size_t wanted = n_tokens + (c->n_running ? c->n_held : 0);
    for (uint32_t i = 0; i < s->n_running; i++) {
        qn_request *q = s->running[i];
        if (may_take(c, q) && (is_full(s) || wanted <= q->client->n_held) && (!place || is_rather(q, place)))
            place = q;
    }
    return place;
}

/* The next request; NULL if there is none, or no place for it. `blocked` is NULL or a request that waits for memory and
 * may be passed. The caller holds the lock. */
static qn_request *find_next(const qn_scheduler *s, double now, const qn_request *blocked)
{
    const qn_client *best = NULL;
    qn_request *next = NULL;
    for (const qn_client *c = s->clients; c; c = c->next) {
        if (!c->queue || (best && !is_before(c, best)) || (blocked && (c->n_running || c == blocked->client)) ||
            (is_full(s) && !find_place(s, c, 0)))
            continue;
        qn_request *r = first_of(s, c, now);
        if (!r || (blocked && r->n_tokens >= blocked->n_tokens))
            continue;
        best = c;
        next = r;
    }
    return next;
}

bool qn_scheduler_wants_place(qn_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    const qn_request *r = s->n_clients > 1 ? find_next(s, qn_now(), NULL) : NULL;
    const bool wants =
        r && (is_full(s) || (r->admitted_after == s->n_released && find_place(s, r->client, r->n_tokens)));
    pthread_mutex_unlock(&s->lock);
    return wants;
}

static void yield(qn_scheduler *s, qn_request *r)
{
    r->result.n_yielded++;
    pthread_mutex_lock(&s->lock);
    s->counters.yielded++;
    pthread_mutex_unlock(&s->lock);
    qn_scheduler_requeue(s, r);
}

/* Returns true if another request gave up its place or memory. Does nothing while a step is in flight, because that
 * step has rows of all running requests. */
static bool make_place(qn_scheduler *s, const qn_request *r)
{
    if (s->flight)
        return false;
    if (qn_scheduler_has_finished(s)) {
        qn_scheduler_catch_up(s);
        return true;
    }
    pthread_mutex_lock(&s->lock);
    qn_request *place = find_place(s, r->client, r->n_tokens);
    pthread_mutex_unlock(&s->lock);
    if (place)
        yield(s, place);
    return place;
}

/* ---- Admission ---- */

static bool is_last_chance(const qn_request *r)
{
    return r->result.n_set_aside >= QN_MAX_SET_ASIDE;
}

/* Returns true if a request that must not be set aside again has to wait for another such request. */
static bool waits_for_last(const qn_scheduler *s, const qn_request *r)
{
    for (uint32_t i = 0; is_last_chance(r) && i < s->n_running; i++)
        if (is_last_chance(s->running[i]))
            return true;
    return false;
}

static void adopt_prefix(qn_scheduler *s, qn_request *r)
{
    uint32_t matched = 0;
    if (!s->kept || qn_kept_adopt(&s->model->kept, s->kept, r->lists->scope, qn_token_ids(r->tokens),
                                  qn_request_n_reusable(r), r->memory, &matched) != QN_OK)
        return;
    r->branch = matched > r->memory->sequence->length ? matched : 0;
}

/* Gives a request a sequence with the cached part of its prefix. Sets *begun to false if it does not fit. */
static qn_status begin(qn_scheduler *s, qn_request *r, bool *begun)
{
    *begun = s->generation;
    if (s->generation) {
        r->memory = s->generation->session->memory;
        return QN_OK;
    }
    QN_TRY(qn_kept_memory_new(&s->model->kept, s->model->device, &s->memory_params, &r->memory));
    adopt_prefix(s, r);
    *begun = fits(s, r) || !s->n_running;
    if (*begun)
        return QN_OK;
    r->memory->vtable->free(r->memory);
    r->memory = NULL;
    r->admitted_after = s->n_released;
    return QN_OK;
}

static void count_admitted(qn_scheduler *s, qn_request *r, double now)
{
    const size_t reused = s->generation ? 0 : r->memory->sequence->length;
    r->n_turn = 0;
    r->n_again = r->n_lost > reused ? r->n_lost - reused : 0;
    if (r->admitted > 0)
        return;
    r->admitted = now;
    r->result.n_reused = reused;
    s->counters.prompt_tokens += r->n_prompt;
    s->counters.reused_tokens += reused;
    s->counters.prefix_hits += reused > 0;
}

/* Returns true if the next step has rows of a running request. */
static bool has_rows(const qn_scheduler *s)
{
    for (uint32_t i = 0; i < s->n_running; i++)
        if (!s->running[i]->is_over && atomic_load(&s->running[i]->mask_state) != QN_MASK_WAITING)
            return true;
    return false;
}

/* Returns true if a request's prefix has to be copied from host memory first. The copy runs during a step of other
 * requests, so these do not wait for it. */
static bool waits_for_copy(const qn_scheduler *s, const qn_request *r)
{
    return s->overlaps && !s->flight && s->kept && has_rows(s) &&
           qn_kept_is_spilled(s->kept, r->lists->scope, qn_token_ids(r->tokens), qn_request_n_reusable(r));
}

static void take_out(qn_scheduler *s, qn_request *r, qn_status status, double now)
{
    pthread_mutex_lock(&s->lock);
    qn_client_begin(s, r);
    qn_client_remove(s, r);
    if (status == QN_OK) {
        s->running[s->n_running++] = r;
        r->client->n_running++;
        count_admitted(s, r, now);
        qn_places_enter(s, r);
    }
    pthread_mutex_unlock(&s->lock);
    if (status != QN_OK)
        qn_scheduler_end(s, r, QN_FINISH_ERROR, status);
}

/* BLOCKED: the request does not fit in memory. */
typedef enum admission { ADMITTED, BLOCKED, WAITS } admission;

static admission admit(qn_scheduler *s, qn_request *r, double now)
{
    if (waits_for_last(s, r))
        return BLOCKED;
    for (;;) {
        if (!is_full(s) && (!s->n_running || r->admitted_after != s->n_released)) {
            bool begun = false;
            if (waits_for_copy(s, r))
                return WAITS;
            const qn_status status = begin(s, r, &begun);
            if ((status != QN_OK && (status != QN_ERR_MEMORY || !s->n_running)) || begun) {
                take_out(s, r, status, now);
                return ADMITTED;
            }
            r->admitted_after = s->n_released;
        }
        if (!make_place(s, r))
            return is_full(s) ? WAITS : BLOCKED;
    }
}

void qn_scheduler_admit(qn_scheduler *s)
{
    const double now = qn_now();
    qn_request *first = NULL, *blocked = NULL; /* the first that was blocked, and the last */
    for (;;) {
        pthread_mutex_lock(&s->lock);
        qn_request *r = find_next(s, now, blocked);
        pthread_mutex_unlock(&s->lock);
        if (!r || (first && first->n_passed == MAX_PASSED))
            return;
        const admission result = admit(s, r, now);
        if (result == WAITS)
            return;
        if (result == BLOCKED) {
            blocked = r;
            first = first ? first : r;
        } else if (first) {
            first->n_passed++;
        }
    }
}
