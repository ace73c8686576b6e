/* A model's plan with an executor on the fake CUDA driver, without kernels. */
#ifndef QN_TESTS_HELPER_CUDA_MODEL_H
#define QN_TESTS_HELPER_CUDA_MODEL_H

#include "helper_cuda.h"

#include "base/cpu.h"
#include "cuda/runtime/code.h"
#include "cuda/executor/device.h"
#include "device/memory.h"
#include "gguf/gguf.h"
#include "model/model.h"

struct cuda_fixture {
    qn_gguf *file; /* NULL: the test built the plan */
    qn_hparams hparams;
    qn_plan plan;
    qn_team *team;
    const qn_kv_format *format;
    const char *nvrtc; /* library that compiles kernels; NULL: no kernels */
    qn_device *device;
};

/* Resets the fixture and reads the plan of a golden model. */
static inline void read_golden(struct cuda_fixture *x, const char *golden)
{
    char path[512];
    memset(x, 0, sizeof *x);
    snprintf(path, sizeof path, "%s/tests/golden/%s.gguf", QN_SOURCE_DIR, golden);
    assert_ok(qn_gguf_open(path, &x->file));
    assert_ok(qn_model_build(x->file, &x->hparams, &x->plan));
}

/* bits: of AURA codes; 0: fp16. */
static inline void set_format(struct cuda_fixture *x, unsigned bits)
{
    char name[16];
    snprintf(name, sizeof name, bits ? "aura%u" : "f16", bits);
    assert_ok(qn_kv_format_named(name, &x->format));
}

/* Opens the executor of x->plan. bits: of AURA codes; 0: fp16. */
static inline qn_status open_device(struct cuda_fixture *x, unsigned bits)
{
    static const qn_gpu_code no_code;
    const qn_cuda_tools tools = { .cache_folder = "",
                                  .nvcc = "",
                                  .nvrtc = x->nvrtc ? x->nvrtc : "",
                                  .code = x->nvrtc ? qn_gpu_code_built_in() : &no_code };
    unsigned cpu;
    fake.no_param_info = true;
    const qn_cuda_driver *driver = fake_driver();
    assert_ok(qn_cpu_features(&cpu));
    set_format(x, bits);
    assert_ok(qn_team_create(1, &x->team));
    const qn_cuda_executor_params params = { .base = { .plan = &x->plan, .team = x->team, .cpu = cpu },
                                             .driver = driver,
                                             .tools = &tools };
    return qn_cuda_executor_create(&params, &x->device);
}

static inline void create_device(struct cuda_fixture *x, unsigned bits)
{
    assert_ok(open_device(x, bits));
}

static inline qn_memory_params memory_params(const struct cuda_fixture *x, size_t n_ctx, size_t n_batch)
{
    return (qn_memory_params){ .n_ctx = n_ctx, .n_batch = n_batch, .format = x->format };
}

/* The same for an fp16 cache. */
static inline qn_memory_params f16_params(const struct cuda_fixture *x, size_t n_ctx, size_t n_batch)
{
    qn_memory_params params = memory_params(x, n_ctx, n_batch);
    assert_ok(qn_kv_format_named("f16", &params.format));
    return params;
}

static inline void free_device(struct cuda_fixture *x)
{
    x->device->vtable->free(x->device);
    qn_team_free(x->team);
    qn_plan_free(&x->plan);
    qn_gguf_close(x->file);
    fake_expect_empty();
}

#endif
