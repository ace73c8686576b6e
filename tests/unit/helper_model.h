/* A model's plan with an executor on the CPU, and memory for its sequences. */
#ifndef QN_TESTS_HELPER_MODEL_H
#define QN_TESTS_HELPER_MODEL_H

#include "helper_assert.h"

#include "cache/kv.h"
#include "cache/recurrent.h"
#include "device/cpu/executor.h"
#include "model/model.h"

#include <stdlib.h>

struct fixture {
    qn_gguf *file;
    uint8_t *data; /* bytes of the file if it is in memory, or NULL */
    qn_hparams hparams;
    qn_plan plan;
    qn_kernels kernels;
    qn_team *team;
    qn_executor *executor;
};

/* Adds the plan of x->file and an executor of n_threads threads with the kernels for `cpu`. */
static inline void build_executor(struct fixture *x, int n_threads, unsigned cpu, size_t max_rows, size_t n_ctx)
{
    assert_ok(qn_model_build(x->file, &x->hparams, &x->plan));
    qn_kernels_init(&x->kernels, cpu);
    assert_ok(qn_team_create(n_threads, &x->team));
    assert_ok(qn_executor_create(x->team, &x->kernels, &x->plan, &x->executor));
    assert_ok(qn_executor_reserve(x->executor, max_rows, n_ctx));
}

static inline void tear_down(struct fixture *x)
{
    qn_executor_free(x->executor);
    qn_team_free(x->team);
    qn_plan_free(&x->plan);
    qn_gguf_close(x->file);
    free(x->data);
}

/* The KV cache of one sequence, and its recurrent states if the model has recurrent layers. */
struct memory {
    qn_kv kv;
    qn_recurrent recurrent;
};

static inline struct memory new_memory(const struct fixture *x, size_t n_ctx, size_t n_batch)
{
    struct memory m = { 0 };
    const qn_hparams *h = &x->hparams;
    const qn_kv_shape shape = { x->plan.is_recurrent, h->n_layers, h->n_kv_heads, h->head_dim };
    assert_ok(qn_kv_create(&m.kv, &shape, n_ctx, n_batch, (qn_kv_codecs){ 0 }));
    if (x->plan.recurrent.n_v_heads)
        assert_ok(qn_recurrent_create(&m.recurrent, &x->plan.recurrent, x->plan.is_recurrent, h->n_layers));
    return m;
}

static inline void free_memory(struct memory *m)
{
    qn_kv_free(&m->kv);
    qn_recurrent_free(&m->recurrent);
}

#endif
