/* The sessions' memory on the CPU: sequences of a pool that all sessions of a device share, and views of them for the
 * operations. */
#ifndef QN_CPU_MEMORY_H
#define QN_CPU_MEMORY_H

#include "cpu/kv_layout.h"
#include "cpu/recurrent_layout.h"
#include "device/device.h"

typedef struct qn_cpu_caches qn_cpu_caches;

/* A cache format, with everything that all its memories share. Constant after it was created, but `next`; owned by the
 * caches. */
typedef struct qn_cpu_format {
    qn_cache cache;
    const qn_kv_format *format;
    qn_aura_codecs codecs, head_codecs; /* head_codecs: of the draft head */
    qn_kv_layout layout, head;          /* head: of the draft head, after the other in each page */
    qn_saved_layout saved, saved_head;
    size_t n_layers;                      /* of the plan: those of `saved`, then those of the draft head */
    const qn_recurrent_layout *recurrent; /* the same in all formats; NULL without recurrent layers */
    struct qn_cpu_format *next;
} qn_cpu_format;

/* Hidden states that a memory keeps for the draft head: of the last row of a step, and of a draft before it. */
enum { QN_CPU_HIDDEN = 16 };

/* Normed hidden states of a sequence's last rows, by position modulo QN_CPU_HIDDEN, and the draft head's own of the
 * draft step before. After the contents of the sequence were replaced by those of another they may be of rows that are
 * gone: drafts are then worse. */
typedef struct qn_cpu_hidden {
    float *rows, *draft; /* [QN_CPU_HIDDEN, width], [width]; NULL without a draft head */
    size_t width;
    uint32_t positions[QN_CPU_HIDDEN], draft_position; /* UINT32_MAX: none */
} qn_cpu_hidden;

/* A session's memory. After qn_memory_vtable.prepare the views are those for the rows of its next step: they point into
 * the pool and into the sequence's tables, until the sequence changes. Used by one thread at a time; during a step all
 * threads of the team read it. */
typedef struct qn_cpu_memory {
    qn_memory base;
    const qn_cpu_format *format;
    qn_sequence sequence;
    qn_kv_view kv, head_kv;      /* of the trunk's layers; of the draft head's */
    qn_recurrent_view recurrent; /* without a layout if no layer is recurrent */
    qn_cpu_hidden *hidden;       /* threads of a step write those of different rows */
} qn_cpu_memory;

/* qn_cpu_memory_of - returns the memory of a row's session. */
static inline const qn_cpu_memory *qn_cpu_memory_of(const qn_row *row)
{
    return (const qn_cpu_memory *)row->memory;
}

/* qn_cpu_hidden_row - returns the kept hidden state [width] of the row at `position`, of the last draft step's row if
 * is_draft and it is that one; NULL if there is none. */
const float *qn_cpu_hidden_row(const qn_cpu_memory *memory, size_t position, bool is_draft);

/* qn_cpu_view - sets the views for appending n reserved rows; n = 0: for the present contents. By the thread that uses
 * the memory. */
void qn_cpu_view(qn_cpu_memory *memory, size_t n);

/* qn_cpu_caches_create - creates the pool for a plan.
 *
 *   plan     must outlive the pool
 *   budget   bytes; 0: half of the memory that is available besides the weights
 *   share    the part of the budget that is used; 0: all of it
 *
 * Free with qn_cpu_caches_free, which accepts NULL, after all memories. */
qn_status qn_cpu_caches_create(const qn_plan *plan, uint64_t budget, double share, qn_cpu_caches **out);
void qn_cpu_caches_free(qn_cpu_caches *caches);

/* qn_cpu_memory_new - implements qn_device_vtable.memory_new. Any thread may call it. */
qn_status qn_cpu_memory_new(qn_cpu_caches *caches, const qn_memory_params *params, qn_memory **out);

#endif
