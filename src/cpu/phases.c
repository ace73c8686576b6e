/* Division of a step into phases, works and pieces. */
#include "cpu/phases.h"

#include "base/memory.h"
#include "base/topology.h"
#include "cpu/follow.h"

#include <string.h>

/* Limit of operations in a phase, so that the numbers of pieces of their works fit in qn_team_pieces; a phase that is
 * divided in two is only slower. */
enum { MAX_OPS = 4, MAX_WORKS = MAX_OPS * QN_CPU_OP_WORKS + QN_CPU_OP_WORKS /* late ones */ };

/* Pieces. A thread that is interrupted delays the others by the piece that it is in, so pieces are short; but each
 * costs a claim, and begins to read memory anew. A work that reads little memory is divided once for each thread if it
 * has fewer than MANY items for each. Else an eighth of the items is shared; more where cores differ in speed, so that
 * the own pieces of a thread on a slow core end with the phase. There, few items are shared singly. */
enum { MANY = 32, OWN = 7, SHARED_PART = 8, PIECE_BYTES = 64 << 10, MAX_OWN_PIECES = 24, MAX_SHARED_PIECES = 8 };
enum { MAX_SINGLE_PIECES = QN_TEAM_MAX_SHARED / MAX_WORKS };
/* Guided work of more threads has the pieces of that many. */
enum { MAX_GUIDED_THREADS = 64 };
_Static_assert(MAX_WORKS *MAX_OWN_PIECES <= QN_TEAM_MAX_OWN, "the own pieces of all works fit");

/* With more threads than cores two threads of a core are slow, which the system spreads over all cores. */
static double find_own_part(size_t n_threads)
{
    qn_topology topology;
    float speeds[QN_MAX_PROCESSORS];
    qn_topology_read("", &topology);
    qn_topology_speeds(&topology, speeds);
    return qn_own_part(speeds, n_threads < topology.n_cores ? n_threads : topology.n_cores);
}

static size_t ops_of(const qn_executor *ex, size_t phase)
{
    return ex->phases[phase + 1] - ex->phases[phase];
}

static bool begins_section(const qn_executor *ex, size_t phase)
{
    return phase == ex->draft_phase || phase == ex->chain_phase;
}

/* An operation follows another of its section, and is not the last one there: its late works need a phase. */
static qn_status find_followers(qn_executor *ex)
{
    const qn_plan *plan = ex->plan;
    QN_TRY(qn_alloc(&ex->arrivals, qn_follow_counters(plan), QN_FOLLOW_STRIDE * sizeof *ex->arrivals, "executor"));
    QN_TRY(qn_alloc(&ex->follows, ex->n_phases, sizeof *ex->follows, "executor"));
    for (size_t phase = 1; phase + 1 < ex->n_phases; phase++)
        ex->follows[phase] = !begins_section(ex, phase) && !begins_section(ex, phase + 1) &&
                             ops_of(ex, phase - 1) == 1 && ops_of(ex, phase) == 1 &&
                             qn_follow_can(plan, ex->phases[phase]);
    return QN_OK;
}

qn_status qn_phases_create(qn_executor *executor)
{
    const qn_plan *plan = executor->plan;
    bool *barriers;
    QN_TRY(qn_alloc(&executor->phases, plan->n_ops + 1, sizeof *executor->phases, "executor"));
    QN_TRY(qn_alloc(&executor->works, MAX_WORKS, sizeof *executor->works, "executor"));
    QN_TRY(qn_alloc(&barriers, plan->n_ops, sizeof *barriers, "executor"));
    qn_plan_find_barriers(plan, barriers);
    executor->own_part = find_own_part((size_t)qn_team_size(executor->team));
    for (size_t i = 0, first = 0; i < plan->n_ops; i++)
        if (barriers[i] || i + 1 == plan->n_ops || i + 1 - first == MAX_OPS)
            executor->phases[++executor->n_phases] = first = i + 1;
    qn_free(barriers);
    while (executor->phases[executor->draft_phase] < qn_plan_step_ops(plan))
        executor->draft_phase++;
    executor->chain_phase = executor->draft_phase;
    while (executor->phases[executor->chain_phase] < (plan->head.chain ? plan->head.chain : plan->n_ops))
        executor->chain_phase++;
    return find_followers(executor);
}

void qn_phases_free(qn_executor *executor)
{
    qn_free(executor->phases);
    qn_free(executor->works);
    qn_free(executor->follows);
    qn_free(executor->arrivals);
}

static size_t at_most(size_t n, size_t most)
{
    return n < most ? n : most;
}

/* A piece for each unit, or for each few. */
static void divide_singly(qn_cpu_work *work, size_t units)
{
    work->own = work->n_own_items = 0;
    work->shared = at_most(units, MAX_SINGLE_PIECES);
}

/* Pieces of about PIECE_BYTES, seven eighths of `own_part` of them in the threads' own parts. */
static void divide_evenly(qn_cpu_work *work, size_t units, size_t n_threads, double own_part)
{
    const size_t own_units = n_threads == 1 ? units : (size_t)((double)(units - units / SHARED_PART) * own_part);
    const size_t shared_units = units - own_units, per_thread = own_units / n_threads;
    if (!per_thread) {
        divide_singly(work, units);
        return;
    }
    const size_t by_bytes = per_thread * work->unit * work->item_bytes / PIECE_BYTES;
    const size_t wanted = work->item_bytes ? by_bytes : OWN;
    const size_t most = work->item_bytes ? (per_thread + work->together - 1) / work->together : per_thread;
    work->own = n_threads == 1 || !wanted ? 1 : at_most(at_most(wanted, most), MAX_OWN_PIECES);
    work->n_own_items = at_most(own_units * work->unit, work->count);
    /* Half as large as own pieces, or one for each thread. */
    const size_t large = work->item_bytes ? shared_units * 2 / work->together : shared_units,
                 shared = large < n_threads ? at_most(shared_units, n_threads) : large;
    work->shared = at_most(at_most(shared, MAX_SHARED_PIECES * n_threads), MAX_SINGLE_PIECES);
}

size_t qn_guided_piece(const qn_cpu_work *work, size_t n_threads, size_t index, qn_cpu_range *range)
{
    const size_t each = at_most(n_threads, MAX_GUIDED_THREADS);
    size_t size = work->together, begin = 0, n_pieces = 0;
    while (work->count / size > MAX_SINGLE_PIECES / 2)
        size *= 2;
    for (; size; size /= 2) {
        const size_t left = work->count - begin, kept = size == 1 ? 0 : at_most(each * size - 1, left),
                     n = (left - kept + size - 1) / size;
        if (range && index >= n_pieces && index < n_pieces + n) {
            range->begin = begin + (index - n_pieces) * size;
            range->end = range->begin + size;
        }
        begin += n * size;
        n_pieces += n;
    }
    return n_pieces;
}

static void divide(qn_cpu_work *work, size_t n_threads, double own_part)
{
    work->unit = work->unit ? work->unit : 1;
    work->together = work->together ? work->together : 2;
    const size_t units = (work->count + work->unit - 1) / work->unit;
    if (work->spread == QN_SPREAD_GUIDED) {
        work->own = work->n_own_items = 0;
        work->shared = qn_guided_piece(work, n_threads, 0, NULL);
    } else if (work->spread == QN_SPREAD_SINGLE || units <= 1) {
        divide_singly(work, units);
    } else if (work->item_bytes ? units >= SHARED_PART * n_threads : units >= MANY * n_threads) {
        divide_evenly(work, units, n_threads, own_part);
    } else if (own_part < 1 && n_threads > 1) {
        divide_singly(work, units);
    } else {
        /* Several pieces: what a thread has not begun, others take. */
        const size_t by_bytes = units / n_threads * work->unit * work->item_bytes / PIECE_BYTES,
                     most = work->item_bytes ? at_most(units / n_threads / work->together, MAX_OWN_PIECES) : 0;
        work->own = n_threads > 1 && by_bytes && most ? at_most(by_bytes, most) : 1;
        work->n_own_items = work->count;
        work->shared = 0;
    }
}

/* Whether an operation is one of the pairs in a step without them. */
static bool is_left_out(const qn_executor *ex, size_t op)
{
    return ex->step->without_pairs && op >= ex->plan->head.pairs && op < ex->plan->head.draft;
}

/* Works of one operation, divided. Returns their number. */
static size_t find_works(const qn_executor *ex, const qn_op *op, size_t n_threads, qn_cpu_work *works)
{
    static size_t (*const find[QN_OP_KINDS])(const qn_executor *ex, const qn_op *op, qn_cpu_work *works) = {
#define OP(KIND, name, rows, order, reads, writes, phase, fields) [QN_OP_##KIND] = qn_executor_##name,
#include "plan/operations.def"
    };
    if (is_left_out(ex, (size_t)(op - ex->plan->ops)) && op->kind != QN_OP_K_NORM_ROPE_STORE)
        return 0;
    const size_t n = find[op->kind](ex, op, works);
    for (size_t i = 0; i < n; i++) {
        works[i].op = op;
        divide(&works[i], n_threads, ex->own_part);
    }
    return n;
}

/* Returns whether the operation of a phase is done in the phase before it. */
static bool is_follower(const qn_executor *ex, size_t phase)
{
    return ex->step->n_rows == 1 && phase < ex->n_phases && ex->follows[phase] && !is_left_out(ex, ex->phases[phase]);
}

/* Adds the late works of the operation that followed the phase before. */
static void add_late_works(qn_executor *ex)
{
    for (size_t i = 0; i < QN_CPU_OP_WORKS; i++)
        if (ex->follower_works[i].late)
            ex->works[ex->n_works++] = ex->follower_works[i];
}

static void open_follower(qn_executor *ex, size_t phase, size_t n_threads)
{
    ex->follower = NULL;
    if (!is_follower(ex, phase + 1))
        return;
    ex->follower = &ex->plan->ops[ex->phases[phase + 1]];
    memset(ex->follower_works, 0, sizeof ex->follower_works);
    find_works(ex, ex->follower, n_threads, ex->follower_works);
}

qn_team_pieces qn_phases_open(void *executor, size_t phase, int n_threads)
{
    qn_executor *ex = executor;
    qn_team_pieces pieces = { 0 };
    phase += ex->first_phase;
    if (is_follower(ex, phase))
        return pieces;
    if (ex->profile)
        qn_cpu_profile_open(ex->profile, phase, (size_t)n_threads);
    ex->n_works = 0;
    for (size_t i = ex->phases[phase]; i < ex->phases[phase + 1]; i++)
        ex->n_works += find_works(ex, &ex->plan->ops[i], (size_t)n_threads, &ex->works[ex->n_works]);
    if (phase && is_follower(ex, phase - 1))
        add_late_works(ex);
    open_follower(ex, phase, (size_t)n_threads);
    for (size_t i = 0; i < ex->n_works; i++) {
        pieces.own += ex->works[i].own;
        pieces.shared += ex->works[i].shared;
    }
    return pieces;
}

/* ---- Pieces ---- */

/* Part `part` of `n` of items [first, end) of a work. */
static qn_cpu_range range_of(const qn_cpu_work *work, size_t first, size_t end, size_t part, size_t n)
{
    qn_cpu_range range;
    qn_team_range(end - first, work->unit, part, n, &range.begin, &range.end);
    range.begin += first;
    range.end += first;
    range.next = work->count;
    return range;
}

/* Own piece `index` of an owner; the thread goes on where it ends. */
static qn_cpu_range own_range(const qn_cpu_work *work, size_t owner, size_t index, size_t n_threads)
{
    qn_cpu_range range = range_of(work, 0, work->n_own_items, owner * work->own + index, n_threads * work->own);
    if (index + 1 < work->own)
        range.next = range.end;
    return range;
}

/* A shared piece; the other threads take those after it. */
static qn_cpu_range shared_range(const qn_cpu_work *work, size_t index, size_t n_threads)
{
    if (work->spread == QN_SPREAD_GUIDED) {
        qn_cpu_range piece = { .next = work->count };
        qn_guided_piece(work, n_threads, index, &piece);
        return piece;
    }
    qn_cpu_range range = range_of(work, work->n_own_items, work->count, index, work->shared);
    if (index + n_threads < work->shared)
        range.next = range_of(work, work->n_own_items, work->count, index + n_threads, work->shared).begin;
    return range;
}

static void run_range(const qn_executor *ex, const qn_cpu_work *work, qn_cpu_range range, int thread)
{
    range.thread = thread;
    if (range.begin >= range.end)
        return;
    if (!ex->profile) {
        work->run(ex, work->op, &range);
        return;
    }
    const uint64_t begin = qn_ticks();
    work->run(ex, work->op, &range);
    qn_cpu_profile_add(ex->profile, thread, (size_t)(work->op - ex->plan->ops), qn_ticks() - begin);
}

/* A thread at the end of its own pieces prefetches the weights that it begins the next phase with. */
static void prefetch_next_phase(const qn_executor *ex, const qn_team_piece *piece)
{
    size_t phase = ex->first_phase + piece->phase + 1;
    while (is_follower(ex, phase))
        phase++;
    const qn_op *op = &ex->plan->ops[ex->phases[phase]];
    qn_cpu_work works[QN_CPU_OP_WORKS];
    if (phase == ex->n_phases || begins_section(ex, phase) || !qn_op_matrices_of(op))
        return;
    find_works(ex, op, (size_t)piece->n_threads, works);
    if (works[0].own)
        qn_executor_prefetch_rows(ex, op,
                                  own_range(&works[0], (size_t)piece->thread, 0, (size_t)piece->n_threads).begin);
}

static void work_own(const qn_executor *ex, const qn_team_piece *piece, size_t own)
{
    const size_t owner = piece->index / own, n_threads = (size_t)piece->n_threads;
    size_t index = piece->index % own;
    const bool is_last = index + 1 == own;
    const qn_cpu_work *work = ex->works;
    for (; index >= work->own; work++)
        index -= work->own;
    run_range(ex, work, own_range(work, owner, index, n_threads), piece->thread);
    if (is_last && owner == (size_t)piece->thread)
        prefetch_next_phase(ex, piece);
}

void qn_phases_work(void *executor, const qn_team_piece *piece)
{
    const qn_executor *ex = executor;
    const size_t n_threads = (size_t)piece->n_threads;
    const qn_cpu_work *work = ex->works;
    size_t own = 0;
    for (size_t i = 0; i < ex->n_works; i++)
        own += ex->works[i].own;
    if (piece->index < own * n_threads) {
        work_own(ex, piece, own);
        return;
    }
    size_t index = piece->index - own * n_threads;
    for (; index >= work->shared; work++)
        index -= work->shared;
    run_range(ex, work, shared_range(work, index, n_threads), piece->thread);
}
