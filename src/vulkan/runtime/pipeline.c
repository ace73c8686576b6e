/* Pipelines: a shader and its specialisation constants, compiled by the driver when they are first needed. */
#include "vulkan/runtime/context.h"

#include "base/memory.h"

#include <string.h>

static qn_status compile(qn_vk *vk, const qn_vk_launch *launch, VkPipeline *pipeline)
{
    VkSpecializationMapEntry entries[QN_VK_CONSTANTS];
    for (uint32_t i = 0; i < QN_VK_CONSTANTS; i++)
        entries[i] =
            (VkSpecializationMapEntry){ i, i * (uint32_t)sizeof *launch->constants, sizeof *launch->constants };
    const VkSpecializationInfo constants = { QN_VK_CONSTANTS, entries, sizeof launch->constants, launch->constants };
    const VkShaderModuleCreateInfo code = { .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                            .codeSize = launch->shader->bytes,
                                            .pCode = launch->shader->code };
    VkComputePipelineCreateInfo info = { .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
                                         .stage = { .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                                                    .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                                                    .pName = "main",
                                                    .pSpecializationInfo = &constants },
                                         .flags = VK_PIPELINE_CREATE_DISPATCH_BASE_BIT,
                                         .layout = vk->layout };
    QN_TRY(QN_VK(&vk->call, vkCreateShaderModule, vk->device, &code, NULL, &info.stage.module));
    const VkResult result = vk->call.vkCreateComputePipelines(vk->device, vk->cache, 1, &info, NULL, pipeline);
    vk->call.vkDestroyShaderModule(vk->device, info.stage.module, NULL);
    return result == VK_SUCCESS ? QN_OK
                                : qn_fail(QN_ERR_DEVICE, "%s: the driver does not compile the kernel %s (%d)",
                                          vk->info.name, launch->shader->name, (int)result);
}

static qn_status add(qn_vk *vk, const qn_vk_launch *launch, VkPipeline *handle)
{
    qn_vk_pipeline *pipeline;
    QN_TRY(qn_alloc(&pipeline, 1, sizeof *pipeline, "kernel"));
    *pipeline = (qn_vk_pipeline){ .shader = launch->shader, .next = vk->pipelines };
    memcpy(pipeline->constants, launch->constants, sizeof pipeline->constants);
    const qn_status status = compile(vk, launch, &pipeline->handle);
    if (status != QN_OK) {
        qn_free(pipeline);
        return status;
    }
    vk->pipelines = pipeline;
    *handle = pipeline->handle;
    return QN_OK;
}

qn_status qn_vk_find_pipeline(qn_vk *vk, const qn_vk_launch *launch, VkPipeline *handle)
{
    qn_status status = QN_OK;
    pthread_mutex_lock(&vk->pipeline_lock);
    const qn_vk_pipeline *p = vk->pipelines;
    while (p && (p->shader != launch->shader || memcmp(p->constants, launch->constants, sizeof p->constants) != 0))
        p = p->next;
    if (p)
        *handle = p->handle;
    else
        status = add(vk, launch, handle);
    pthread_mutex_unlock(&vk->pipeline_lock);
    return status;
}

void qn_vk_free_pipelines(qn_vk *vk)
{
    for (qn_vk_pipeline *p = vk->pipelines, *next; p; p = next) {
        next = p->next;
        vk->call.vkDestroyPipeline(vk->device, p->handle, NULL);
        qn_free(p);
    }
    vk->pipelines = NULL;
}
