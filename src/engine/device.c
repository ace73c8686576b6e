/* The device of a model: opening it by the name in the parameters, its read rate and its profile. */
#include "engine/internal.h"
#include "engine/read_rate.h"

#include "device/registry.h"

qn_status qn_model_open_device(qn_model *model, const qn_model_params *params)
{
    const qn_device_params device = { .plan = &model->plan,
                                      .team = model->team,
                                      .cpu = model->cpu,
                                      .memory = params->memory,
                                      .memory_share = model->memory_share,
                                      .shares_team = model->is_draft,
                                      .must_draft = params->draft_model || model->is_draft,
                                      .deterministic = params->deterministic,
                                      .on_log = params->on_log,
                                      .user = params->user };
    qn_device_name name;
    QN_TRY(qn_device_name_parse("device", params->device ? params->device : "auto", &name));
    return qn_device_open(&name, &device, &model->device);
}

qn_status qn_model_read_rate(qn_model *model, double *rate)
{
    if (!model->device || !model->device->vtable->read_rate)
        return qn_fail(QN_ERR_UNSUPPORTED, "no read rate: the model does not run on a GPU");
    qn_model_lock(model);
    const qn_status status = model->device->vtable->read_rate(model->device, rate);
    qn_model_unlock(model);
    return status;
}

qn_status qn_model_profile_start(qn_model *model)
{
    if (!model->device || !model->device->vtable->profile_start)
        return qn_fail(QN_ERR_UNSUPPORTED, "no profile: the model runs on a device that has none");
    qn_model_lock(model);
    const qn_status status = model->device->vtable->profile_start(model->device);
    qn_model_unlock(model);
    return status;
}

void qn_model_profile_stop(qn_model *model, qn_profile *report)
{
    if (!model->device || !model->device->vtable->profile_stop)
        return;
    qn_model_lock(model);
    model->device->vtable->profile_stop(model->device, report);
    qn_model_unlock(model);
}
