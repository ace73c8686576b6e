/* The CPU's implementation of the device interface: runs the executor's steps and samples from their logits. */
#include "cpu/device.h"

#include "base/memory.h"

#include <string.h>

/* Default rows of a step. Matrix units multiply fast, so that unpacking weights once for more rows pays. */
enum { BATCH = 128, TILE_BATCH = 256 };

static void device_free(qn_device *device)
{
    qn_cpu_device *cpu = (qn_cpu_device *)device;
    qn_executor_free(cpu->executor);
    qn_cpu_profile_free(cpu->profile);
    qn_cpu_caches_free(cpu->caches);
    qn_free(cpu->logits);
    qn_free(cpu->scratch);
    qn_free(cpu);
}

/* Packs the matrices. The file's pages of packed rows may then be released; tables, and rows after the last full panel,
 * are read from the file again. */
static qn_status device_upload(qn_device *device, const uint8_t *data, bool *uploaded)
{
    return qn_executor_pack(((qn_cpu_device *)device)->executor, data, uploaded);
}

static qn_status device_reserve(qn_device *device, size_t max_rows, size_t max_positions)
{
    return qn_executor_reserve(((qn_cpu_device *)device)->executor, max_rows, max_positions);
}

static qn_status reserve_sampling(qn_cpu_device *cpu, size_t n_rows)
{
    const size_t n = cpu->plan->n_vocab;
    size_t count;
    if (!cpu->scratch) {
        cpu->scratch_bytes = qn_round_up(qn_sample_scratch_bytes(n), QN_ALIGN);
        QN_TRY(qn_alloc(&cpu->scratch, (size_t)qn_team_size(cpu->team), cpu->scratch_bytes, "sampler"));
    }
    if (n_rows <= cpu->max_sampled)
        return QN_OK;
    qn_free(cpu->logits);
    cpu->logits = NULL;
    cpu->max_sampled = 0;
    if (!qn_mul_size(n_rows, n, &count))
        return qn_fail(QN_ERR_MEMORY, "logits: %zu rows of %zu do not fit in memory", n_rows, n);
    QN_TRY(qn_alloc(&cpu->logits, count, sizeof *cpu->logits, "logits"));
    cpu->max_sampled = n_rows;
    return QN_OK;
}

/* A step whose logit rows are sampled by all threads. */
struct sampling {
    const qn_cpu_device *cpu;
    const qn_step *step;
};

static void sample_rows(void *context, size_t begin, size_t end, int thread)
{
    const struct sampling *s = context;
    const size_t n = s->cpu->plan->n_vocab;
    const uint64_t began = s->cpu->profile ? qn_ticks() : 0;
    for (size_t i = begin; i < end; i++) {
        qn_sample_request *request = &s->step->requests[i];
        if (request->prepare)
            request->prepare(request->user, request);
        qn_sample_token(&s->cpu->kernels.sample, request, s->step->logits + i * n, n,
                        s->cpu->scratch + (size_t)thread * s->cpu->scratch_bytes);
    }
    if (s->cpu->profile)
        qn_cpu_profile_add(s->cpu->profile, thread, s->cpu->plan->n_ops, qn_ticks() - began);
}

/* Calls `check` for each sampled token, on the thread that runs the step. If it rejects the token, it returns a buffer
 * for the row's logits, from which the caller then samples again. */
static void check_rows(const qn_cpu_device *cpu, const qn_step *step)
{
    const size_t n = cpu->plan->n_vocab;
    for (size_t i = 0; i < step->n_logit_rows; i++) {
        const qn_sample_request *request = &step->requests[i];
        float *copy = request->check && request->token >= 0 ? request->check(request->user, request->token) : NULL;
        if (copy)
            memcpy(copy, step->logits + i * n, n * sizeof *copy);
    }
}

static qn_status sample(qn_cpu_device *cpu, const qn_step *step)
{
    qn_step with_logits = *step;
    struct sampling sampling = { cpu, &with_logits };
    QN_TRY(reserve_sampling(cpu, step->logits ? 0 : step->n_logit_rows));
    if (!step->logits)
        with_logits.logits = cpu->logits;
    qn_executor_run(cpu->executor, &with_logits);
    if (cpu->profile)
        qn_cpu_profile_open(cpu->profile, cpu->executor->n_phases, (size_t)qn_team_size(cpu->team));
    qn_team_divide(cpu->team, step->n_logit_rows, 1, sample_rows, &sampling);
    check_rows(cpu, &with_logits);
    if (cpu->profile)
        qn_cpu_profile_close(cpu->profile);
    return QN_OK;
}

static qn_status device_run(qn_device *device, const qn_step *step)
{
    qn_cpu_device *cpu = (qn_cpu_device *)device;
    if (step->requests)
        return sample(cpu, step);
    qn_executor_run(cpu->executor, step);
    return QN_OK;
}

static qn_status device_memory(qn_device *device, const qn_memory_params *params, qn_memory **out)
{
    return qn_cpu_memory_new(((qn_cpu_device *)device)->caches, params, out);
}

static qn_status device_profile_start(qn_device *device)
{
    qn_cpu_device *cpu = (qn_cpu_device *)device;
    const qn_executor *ex = cpu->executor;
    qn_cpu_profile_free(cpu->profile);
    const qn_status status =
        qn_cpu_profile_create(cpu->plan, ex->phases, ex->n_phases, (size_t)qn_team_size(cpu->team), &cpu->profile);
    cpu->executor->profile = cpu->profile;
    return status;
}

static void device_profile_stop(qn_device *device, qn_profile *report)
{
    qn_cpu_device *cpu = (qn_cpu_device *)device;
    if (cpu->profile)
        qn_cpu_profile_report(cpu->profile, report);
    qn_cpu_profile_free(cpu->profile);
    cpu->executor->profile = cpu->profile = NULL;
}

static const qn_device_vtable vtable = {
    .free = device_free,
    .reserve = device_reserve,
    .run = device_run,
    .memory_new = device_memory,
    .upload = device_upload,
    .profile_start = device_profile_start,
    .profile_stop = device_profile_stop,
};

qn_status qn_cpu_device_create(const qn_device_params *params, qn_device **out)
{
    qn_cpu_device *cpu;
    *out = NULL;
    QN_TRY(qn_alloc(&cpu, 1, sizeof *cpu, "device"));
    *cpu = (qn_cpu_device){ .base = { .vtable = &vtable,
                                      .row_features = QN_ROW_EMBEDDING | QN_ROW_POSITION | QN_ROW_HIDDEN,
                                      .name = "cpu",
                                      .drafts = params->plan->head.draft > 0 },
                            .plan = params->plan,
                            .team = params->team };
    qn_kernels_init(&cpu->kernels, params->cpu);
    cpu->base.batch = cpu->kernels.matmul.gemm_blocks ? TILE_BATCH : BATCH;
    qn_status status = qn_executor_create(params->team, &cpu->kernels, params->plan, &cpu->executor);
    if (status == QN_OK)
        cpu->executor->shares_team = params->shares_team;
    if (status == QN_OK)
        status = qn_cpu_caches_create(params->plan, params->memory, params->memory_share, &cpu->caches);
    if (status != QN_OK)
        device_free(&cpu->base);
    else
        *out = &cpu->base;
    return status;
}
