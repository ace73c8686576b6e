/* The parts of a model on a Vulkan device, and the table of its functions. */
#include "vulkan/executor/device.h"

#include "base/memory.h"
#include "vulkan/executor/steps.h"

#include <stdio.h>
#include <string.h>

enum { BATCH = 512 };

static void device_free(qn_device *device)
{
    qn_vk_model *model = (qn_vk_model *)device;
    qn_vk *vk = model->common.vk;
    if (vk) {
        qn_vk_drain(vk);
        qn_vk_steps_free(model);
        qn_vk_sampler_free(&model->sampler);
        qn_vk_caches_free(&model->caches);
        qn_vk_workspace_free(&model->workspace);
        qn_vk_weights_free(&model->weights);
        qn_vk_close(vk);
    }
    qn_free(model->profile.seconds);
    qn_free(model->barriers);
    qn_free(model->pieces);
    qn_free(model);
}

static qn_status device_reserve(qn_device *device, size_t max_rows, size_t max_positions)
{
    qn_vk_model *model = (qn_vk_model *)device;
    const qn_vk_workspace *w = &model->workspace;
    if (max_rows <= w->max_rows && max_positions <= w->max_positions)
        return QN_OK;
    max_rows = qn_gpu_bucket(max_rows < w->max_rows ? w->max_rows : max_rows);
    if (max_rows > QN_VK_MAX_ROWS)
        return qn_fail(QN_ERR_UNSUPPORTED, "step: %zu rows, at most %d are supported by Vulkan devices", max_rows,
                       QN_VK_MAX_ROWS);
    qn_vk_steps_forget(model);
    model->base.ahead = 0;
    QN_TRY(qn_vk_workspace_reserve(&model->workspace, max_rows,
                                   max_positions < w->max_positions ? w->max_positions : max_positions));
    const qn_status status = qn_vk_sampler_reserve(&model->sampler);
    if (status != QN_OK) {
        model->workspace.max_rows = model->workspace.max_positions = 0; /* the next call reserves all anew */
        return status;
    }
    model->base.ahead = w->embeds_on_host ? 0 : w->logit_rows;
    return QN_OK;
}

static qn_status device_memory_new(qn_device *device, const qn_memory_params *params, qn_memory **out)
{
    return qn_vk_memory_create(&((qn_vk_model *)device)->caches, params, out);
}

static qn_status device_upload(qn_device *device, const uint8_t *data, bool *uploaded)
{
    return qn_vk_weights_upload(&((qn_vk_model *)device)->weights, data, uploaded);
}

static const qn_device_vtable vtable = {
    .free = device_free,
    .reserve = device_reserve,
    .run = qn_vk_run_step,
    .launch = qn_vk_launch_step,
    .sample = qn_vk_sample_step,
    .finish = qn_vk_finish_step,
    .memory_new = device_memory_new,
    .upload = device_upload,
    .profile_start = qn_vk_profile_start,
    .profile_stop = qn_vk_profile_stop,
};

static qn_status create(qn_vk_model *model, int ordinal)
{
    const qn_plan *plan = model->common.plan;
    QN_TRY(qn_vk_check_plan(plan));
    QN_TRY(qn_vk_open(ordinal, &model->common.vk));
    QN_TRY(qn_vk_check_shared(plan, qn_vk_get_info(model->common.vk)));
    QN_TRY(qn_alloc(&model->barriers, plan->n_ops, sizeof *model->barriers, "plan"));
    QN_TRY(qn_alloc(&model->pieces, QN_GPU_MAX_SEQUENCES, sizeof *model->pieces, "step"));
    qn_plan_find_barriers(plan, model->barriers);
    QN_TRY(qn_vk_steps_create(model));
    QN_TRY(qn_vk_weights_create(&model->common, &model->weights));
    QN_TRY(qn_vk_caches_create(&model->common, &model->weights, &model->caches));
    QN_TRY(qn_vk_workspace_init(&model->common, !qn_vk_embeds(plan), &model->workspace));
    return qn_vk_sampler_init(&model->common, &model->workspace, &model->sampler);
}

qn_status qn_vk_device_create(int ordinal, const qn_device_params *params, qn_device **out)
{
    qn_vk_model *model;
    *out = NULL;
    QN_TRY(qn_alloc(&model, 1, sizeof *model, "device"));
    *model = (qn_vk_model){
        .base = { .vtable = &vtable, .row_features = QN_ROW_HIDDEN, .batch = BATCH },
        .common = { .plan = params->plan, .team = params->team, .memory_limit = params->memory },
    };
    qn_hadamard_kernels_init(&model->common.hadamard, params->cpu);
    qn_sample_kernels_init(&model->common.sample, params->cpu);
    snprintf(model->base.name, sizeof model->base.name, "vulkan:%d", ordinal);
    const qn_status status = create(model, ordinal);
    if (status != QN_OK) {
        char text[QN_ERROR_TEXT_MAX]; /* device_free may overwrite it */
        memcpy(text, qn_error_text(), sizeof text);
        device_free(&model->base);
        return qn_fail(status, "%s", text);
    }
    *out = &model->base;
    return QN_OK;
}
