/* Opening a device. */
#include "vulkan/runtime/context.h"

#include "base/memory.h"
#include "vulkan/runtime/matrices.h"
#include "vulkan/runtime/pipeline_cache.h"

#include <string.h>

static qn_status create_device(qn_vk *vk)
{
    const qn_vk_features *features = &vk->info.features;
    const char *extensions[2];
    uint32_t n_extensions = 0;
    const float priority = 1;
    qn_vk_matrix_features matrices;
    VkPhysicalDeviceShaderIntegerDotProductFeaturesKHR dot = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES_KHR,
        .shaderIntegerDotProduct = VK_TRUE
    };
    VkPhysicalDeviceBufferDeviceAddressFeatures addresses = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES,
        .pNext = features->dot ? &dot : NULL,
        .bufferDeviceAddress = VK_TRUE
    };
    const VkDeviceQueueCreateInfo queue = { .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                            .queueFamilyIndex = vk->info.queue_family,
                                            .queueCount = 1,
                                            .pQueuePriorities = &priority };
    if (features->dot)
        extensions[n_extensions++] = VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME;
    if (features->matrix_depth)
        extensions[n_extensions++] = QN_VK_MATRIX_EXTENSION;
    const VkDeviceCreateInfo info = { .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                      .pNext = features->matrix_depth
                                                   ? qn_vk_link_matrix_features(&matrices, &addresses)
                                                   : (void *)&addresses,
                                      .queueCreateInfoCount = 1,
                                      .pQueueCreateInfos = &queue,
                                      .enabledExtensionCount = n_extensions,
                                      .ppEnabledExtensionNames = extensions };
    QN_TRY(QN_VK(&vk->instance.call, vkCreateDevice, vk->info.physical, &info, NULL, &vk->device));
#define FIND(function)                                                                                                 \
    vk->call.function = (PFN_##function)vk->instance.call.vkGetDeviceProcAddr(vk->device, #function);                  \
    if (!vk->call.function)                                                                                            \
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: the driver has no " #function, vk->info.name);
    QN_VK_DEVICE_FUNCTIONS(FIND)
#undef FIND
    vk->call.vkGetDeviceQueue(vk->device, vk->info.queue_family, 0, &vk->queue);
    return QN_OK;
}

static qn_status create_layout(qn_vk *vk)
{
    const VkPushConstantRange args = { .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .size = QN_VK_MAX_ARGS };
    const VkPipelineLayoutCreateInfo info = { .sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                              .pushConstantRangeCount = 1,
                                              .pPushConstantRanges = &args };
    return QN_VK(&vk->call, vkCreatePipelineLayout, vk->device, &info, NULL, &vk->layout);
}

static qn_status open_device(qn_vk *vk, int ordinal)
{
    const qn_vk_info *info;
    QN_TRY(qn_vk_instance_open(&vk->instance));
    QN_TRY(qn_vk_find_device(&vk->instance, ordinal, &info));
    vk->info = *info;
    vk->instance.call.vkGetPhysicalDeviceMemoryProperties(vk->info.physical, &vk->memory);
    QN_TRY(create_device(vk));
    QN_TRY(create_layout(vk));
    qn_vk_open_cache(vk);
    return qn_vk_commands_create(vk, &vk->copies);
}

static qn_status create_locks(qn_vk *vk)
{
    if (pthread_mutex_init(&vk->queue_lock, NULL))
        return qn_fail(QN_ERR_MEMORY, "device: no mutex");
    if (pthread_mutex_init(&vk->copy_lock, NULL)) {
        pthread_mutex_destroy(&vk->queue_lock);
        return qn_fail(QN_ERR_MEMORY, "device: no mutex");
    }
    if (pthread_mutex_init(&vk->pipeline_lock, NULL)) {
        pthread_mutex_destroy(&vk->queue_lock);
        pthread_mutex_destroy(&vk->copy_lock);
        return qn_fail(QN_ERR_MEMORY, "device: no mutex");
    }
    vk->has_locks = true;
    return QN_OK;
}

qn_status qn_vk_open(int ordinal, qn_vk **out)
{
    qn_vk *vk;
    *out = NULL;
    QN_TRY(qn_alloc(&vk, 1, sizeof *vk, "device"));
    *vk = (qn_vk){ 0 };
    qn_status status = create_locks(vk);
    if (status == QN_OK)
        status = open_device(vk, ordinal);
    if (status != QN_OK) {
        char text[QN_ERROR_TEXT_MAX];
        memcpy(text, qn_error_text(), sizeof text);
        qn_vk_close(vk);
        return qn_fail(status, "%s", text);
    }
    *out = vk;
    return QN_OK;
}

void qn_vk_close(qn_vk *vk)
{
    if (!vk)
        return;
    if (vk->device && vk->call.vkDestroyDevice) {
        if (vk->call.vkResetFences) { /* the last function of the table: all others are there */
            (void)vk->call.vkDeviceWaitIdle(vk->device);
            qn_vk_close_cache(vk);
            qn_vk_free_pipelines(vk);
            qn_vk_free(vk, &vk->staging);
            qn_vk_commands_free(vk, &vk->copies);
            if (vk->layout)
                vk->call.vkDestroyPipelineLayout(vk->device, vk->layout, NULL);
        }
        vk->call.vkDestroyDevice(vk->device, NULL);
    }
    qn_vk_instance_close(&vk->instance);
    if (vk->has_locks) {
        pthread_mutex_destroy(&vk->queue_lock);
        pthread_mutex_destroy(&vk->copy_lock);
        pthread_mutex_destroy(&vk->pipeline_lock);
    }
    qn_free(vk);
}

size_t qn_vk_count_barriers(const qn_vk *vk)
{
    return atomic_load(&vk->n_barriers);
}

const qn_vk_info *qn_vk_get_info(const qn_vk *vk)
{
    return &vk->info;
}
