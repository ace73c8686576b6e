/* A model's plan with an executor on the CPU, and memory for its sequences. */
#ifndef QN_TESTS_HELPER_MODEL_H
#define QN_TESTS_HELPER_MODEL_H

#include "helper_assert.h"

#include "cpu/executor.h"
#include "cpu/memory.h"
#include "device/memory.h"
#include "model/model.h"

struct fixture {
    qn_gguf *file;
    uint8_t *data; /* bytes of the file if it is in memory, or NULL */
    qn_hparams hparams;
    qn_plan plan;
    qn_kernels kernels;
    qn_team *team;
    qn_executor *executor;
};

/* Adds the plan of x->file, with the draft head of a drafter, or of its own if it has one that can be used, and an
 * executor of n_threads threads with x->kernels. */
static inline void build_executor_with(struct fixture *x, const qn_gguf *drafter, int n_threads, size_t max_rows,
                                       size_t n_ctx)
{
    qn_model_head head;
    if (drafter)
        assert_ok(qn_model_build_with_drafter(x->file, drafter, &x->hparams, &x->plan));
    else
        assert_ok(qn_model_build_with_head(x->file, &x->hparams, &x->plan, &head));
    assert_ok(qn_team_create(n_threads, &x->team));
    assert_ok(qn_executor_create(x->team, &x->kernels, &x->plan, &x->executor));
    assert_ok(qn_executor_reserve(x->executor, max_rows, n_ctx));
}

static inline void build_executor_with_kernels(struct fixture *x, int n_threads, size_t max_rows, size_t n_ctx)
{
    build_executor_with(x, NULL, n_threads, max_rows, n_ctx);
}

/* The same with the kernels for `cpu`. */
static inline void build_executor(struct fixture *x, int n_threads, unsigned cpu, size_t max_rows, size_t n_ctx)
{
    qn_kernels_init(&x->kernels, cpu);
    build_executor_with_kernels(x, n_threads, max_rows, n_ctx);
}

static inline void tear_down(struct fixture *x)
{
    qn_executor_free(x->executor);
    qn_team_free(x->team);
    qn_plan_free(&x->plan);
    qn_gguf_close(x->file);
    free(x->data);
}

/* The memory of one sequence. */
struct memory {
    qn_cpu_caches *caches;
    qn_cpu_memory *of;
};

static inline struct memory new_memory_as(const struct fixture *x, const char *kv)
{
    struct memory m = { 0 };
    qn_memory_params params = { 0 };
    qn_memory *memory;
    assert_ok(qn_kv_format_named(kv, &params.format));
    assert_ok(qn_cpu_caches_create(&x->plan, 0, 0, &m.caches));
    assert_ok(qn_cpu_memory_new(m.caches, &params, &memory));
    m.of = (qn_cpu_memory *)memory;
    return m;
}

static inline struct memory new_memory(const struct fixture *x)
{
    return new_memory_as(x, "f16");
}

static inline void free_memory(struct memory *m)
{
    m->of->base.vtable->free(&m->of->base);
    qn_cpu_caches_free(m->caches);
}

/* Row `position` of a sequence whose memory has been prepared for it. */
static inline qn_row row_of_memory(const struct memory *m, int32_t token, uint32_t position)
{
    return (qn_row){ .token = token, .position = position, .memory = &m->of->base };
}

/* To be called before a step that appends n rows. */
static inline void prepare_memory(struct memory *m, size_t n)
{
    assert_ok(m->of->base.vtable->prepare(&m->of->base, n));
}

/* To be called after it. */
static inline void append_memory(struct memory *m, size_t length)
{
    qn_memory_on_append(&m->of->base, length);
    qn_cpu_view(m->of, 0);
}

#endif
