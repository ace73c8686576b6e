/* The operations of a plan on the CPU: the executor's data that they share, and what each has to do in a step. */
#ifndef QN_CPU_OPERATIONS_H
#define QN_CPU_OPERATIONS_H

#include "cpu/profile.h"
#include "cpu/workspace.h"
#include "device/device.h"
#include "kernels/kernels.h"

#include <stdatomic.h>

typedef struct qn_executor qn_executor;
typedef struct qn_cpu_work qn_cpu_work;

/* Items of a work that one thread does. */
typedef struct qn_cpu_range {
    size_t begin, end; /* not empty */
    size_t next;       /* the item that the thread probably does after these; count for none */
    int thread;
} qn_cpu_range;

/* How items are divided into pieces (cpu/phases.c). */
typedef enum qn_cpu_spread {
    QN_SPREAD_EVEN,   /* the same time for each item; few items are divided once for each thread */
    QN_SPREAD_SINGLE, /* a piece for each unit: items take long, or different times */
    QN_SPREAD_GUIDED, /* pieces of `together` items, then ever smaller ones: who is free takes the next */
} qn_cpu_spread;

/* Work of an operation in a step that threads share: `count` items that are independent of each other. Ranges begin at
 * multiples of `unit`. */
struct qn_cpu_work {
    const qn_op *op;
    void (*run)(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range);
    size_t count, unit;
    qn_cpu_spread spread;
    size_t item_bytes;               /* memory read for an item, 0 for little: pieces are divided by that */
    size_t together;                 /* how many items of a work that reads memory are computed best at once; 0: 2 */
    bool late;                       /* no part of what another operation follows: done in the next phase (follow.h) */
    size_t n_own_items, own, shared; /* set by cpu/phases.c: items in the threads' own pieces, and numbers of pieces */
};

/* Limit of works of an operation. */
enum { QN_CPU_OP_WORKS = 2 };

struct qn_executor {
    qn_team *team;
    const qn_kernels *kernels;
    const qn_plan *plan;
    qn_cpu_weights weights;
    qn_cpu_workspace workspace;
    const qn_step *step; /* of the caller; NULL between steps */
    bool shares_team;    /* its steps are not those that the team's pace is measured by */
    bool split_kv;       /* this step's attention is split-KV: distributed over blocks of keys too */
    size_t scratch_bytes;
    unsigned char *scratch; /* [n_threads, scratch_bytes] */
    float *zeros;    /* convolution inputs at positions before 0, and rows of a missing state; NULL without recurrent
                        layers */
    double own_part; /* of a thread's equal part of the work, how much may be its own: 1, or less if cores differ */
    size_t *phases;  /* [n_phases + 1] the first operation of each phase; then n_ops */
    /* The first ones of a draft step and of the chain; n_phases without them. */
    size_t n_phases, draft_phase, chain_phase;
    size_t first_phase;    /* of the step */
    bool *follows;         /* [n_phases] whether the phase's operation can follow the one before it (follow.h) */
    atomic_uint *arrivals; /* counters, zero between phases */
    /* Of the phase that is open: written by the thread that opens it, read by all that do its pieces. */
    qn_cpu_work *works; /* [n_works] */
    size_t n_works;
    const qn_op *follower; /* the operation that follows that of the phase; NULL for none */
    qn_cpu_work follower_works[QN_CPU_OP_WORKS];
    qn_cpu_profile *profile; /* NULL: off. Set between steps; the caller's */
};

/* Returns the address of a row in a buffer of the plan. */
static inline float *qn_buffer_row(const qn_executor *ex, int id, size_t row)
{
    return ex->workspace.buffers[id] + row * ex->plan->buffers[id].width;
}

/* Returns a thread's scratch, [scratch_bytes]: contents are kept only until the end of an operation. */
static inline unsigned char *qn_thread_scratch(const qn_executor *ex, int thread)
{
    return ex->scratch + (size_t)thread * ex->scratch_bytes;
}

/* qn_executor_NAME - sets what an operation has to do in the executor's step. Returns the number of works, at most
 * QN_CPU_OP_WORKS. The caller sets `op`. */
#define OP(KIND, name, rows, order, reads, writes, phase, fields)                                                      \
    size_t qn_executor_##name(const qn_executor *ex, const qn_op *op, qn_cpu_work *works);
#include "plan/operations.def"

/* qn_executor_prefetch_rows - prefetches the start of the weights of an item of a matmul (matmul.c). */
void qn_executor_prefetch_rows(const qn_executor *ex, const qn_op *op, size_t item);

/* qn_executor_split_kv - returns whether this step's attention is split-KV (attention.c). */
bool qn_executor_split_kv(const qn_executor *ex);

/* qn_attention_scratch - returns the scratch bytes that a thread needs for attention (attention.c). */
size_t qn_attention_scratch(size_t head_dim);

#endif
