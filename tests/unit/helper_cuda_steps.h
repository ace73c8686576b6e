/* Sequences and steps on the fake CUDA driver, and their launches. */
#ifndef QN_TESTS_HELPER_CUDA_STEPS_H
#define QN_TESTS_HELPER_CUDA_STEPS_H

#include "helper_cuda_model.h"

#include "cuda/executor/executor.h"
#include "cuda/executor/model.h"
#include "gpu/buckets.h"
#include "gpu/inputs.h"
#include "cuda/kernels/attention/attention.h"
#include "cuda/kernels/elementwise/elementwise.h"
#include "cuda/kernels/matmul/embed.h"

enum { CONTEXT = 512, BATCH = 256, MAX_SEQUENCES = 80, MAX_ROWS = 256 };

/* ---- Sequences ---- */

struct fixture {
    struct cuda_fixture cuda;
    qn_cuda_model *model;
    qn_memory *memories[MAX_SEQUENCES];
    qn_sequence sequences[MAX_SEQUENCES]; /* as they were created; during a test they hold other items */
    size_t n_memories;
    float *logits;
};

static struct fixture fixture; /* of the current test */

static inline size_t args_bytes(const char *function)
{
    return !strcmp(function, "qn_attention_decode")     ? sizeof(qn_attention_decode_args)
           : !strcmp(function, "qn_persistent_decode")  ? sizeof(qn_persistent_args)
           : !strcmp(function, "qn_attention_prefill")  ? sizeof(qn_attention_prefill_args)
           : !strcmp(function, "qn_elementwise_gather") ? sizeof(qn_elementwise_gather_args)
           : !strcmp(function, "qn_matmul_gemm_few")    ? sizeof(qn_matmul_few_args)
           : !strcmp(function, "qn_sample_argmax")      ? sizeof(qn_sample_args)
           : !strcmp(function, "qn_matmul_embed")       ? sizeof(qn_matmul_embed_args)
                                                        : FAKE_ARGS_BYTES;
}

static inline void add_memories(size_t n)
{
    const qn_memory_params params = memory_params(&fixture.cuda, CONTEXT, BATCH);
    for (; n; n--) {
        const uint32_t i = (uint32_t)fixture.n_memories;
        assert_ok(fixture.cuda.device->vtable->memory_new(fixture.cuda.device, &params,
                                                          &fixture.memories[fixture.n_memories++]));
        qn_gpu_memory *memory = (qn_gpu_memory *)fixture.memories[i];
        memory->kv_table = 1000 + i;
        memory->f16_table = 2000 + i;
        fixture.sequences[i] = *memory->base.sequence;
        memory->base.sequence->state = 3000 + i;
        memory->base.sequence->state_to = 4000 + i;
        memory->base.sequence->open_chunk = 5000 + i;
    }
}

static inline void set_up(const char *golden, unsigned bits, size_t n)
{
    fixture = (struct fixture){ 0 };
    read_golden(&fixture.cuda, golden);
    fixture.cuda.nvrtc = QN_FAKE_NVRTC;
    create_device(&fixture.cuda, bits);
    fake.args_bytes = args_bytes;
    fixture.model = (qn_cuda_model *)fixture.cuda.device;
    add_memories(n);
    assert_ok(fixture.cuda.device->vtable->reserve(fixture.cuda.device, MAX_ROWS, CONTEXT));
    fixture.logits = malloc(MAX_ROWS * fixture.cuda.plan.n_vocab * sizeof *fixture.logits);
    assert_non_null(fixture.logits);
}

static inline void tear_down(void)
{
    free(fixture.logits);
    for (size_t i = 0; i < fixture.n_memories; i++) {
        *fixture.memories[i]->sequence = fixture.sequences[i];
        fixture.memories[i]->vtable->free(fixture.memories[i]);
    }
    free_device(&fixture.cuda);
}

/* ---- Steps ---- */

struct rows {
    qn_row rows[MAX_ROWS];
    uint32_t logit_rows[MAX_ROWS];
    size_t n, n_logits;
};

/* Adds a piece, whose open chunk must not be full. with_logits: of its last row. Token t of memory m has id m + t. */
static inline void add_piece(struct rows *r, size_t memory, uint32_t position, size_t n, bool with_logits)
{
    fixture.memories[memory]->sequence->state_position = position / 64 * 64;
    for (size_t i = 0; i < n; i++)
        r->rows[r->n++] = (qn_row){ .token = (int32_t)(memory + position + i),
                                    .position = position + (uint32_t)i,
                                    .memory = fixture.memories[memory] };
    if (with_logits)
        r->logit_rows[r->n_logits++] = (uint32_t)r->n - 1;
}

static inline qn_status run(const struct rows *r)
{
    const qn_step step = { .rows = r->rows,
                           .n_rows = r->n,
                           .logit_rows = r->logit_rows,
                           .n_logit_rows = r->n_logits,
                           .logits = fixture.logits };
    return fixture.cuda.device->vtable->run(fixture.cuda.device, &step);
}

/* One row of each of n sequences, from sequence `first` on, with its logits. */
static inline struct rows decode_of(size_t first, size_t n, uint32_t position)
{
    struct rows r = { .n = 0 };
    for (size_t i = first; i < first + n; i++)
        add_piece(&r, i, position + (uint32_t)i, 1, true);
    return r;
}

/* ---- Launches ---- */

static inline const struct fake_launch *launch(int i)
{
    return &fake.log[i % FAKE_LAUNCHES];
}

/* Counts the launches of a function from launch `from` on. *last is the last of them. */
static inline int count(const char *function, int from, const struct fake_launch **last)
{
    int n = 0;
    assert_in_range(fake.launches - from, 0, FAKE_LAUNCHES);
    for (int i = from; i < fake.launches; i++)
        if (!strcmp(launch(i)->function, function)) {
            n++;
            *last = launch(i);
        }
    return n;
}

#endif
