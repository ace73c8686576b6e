/* Structs and numbers are those of the extension's registry. */
#include "vulkan/runtime/matrices.h"

enum {
    FEATURES_TYPE = 1000506000,
    PROPERTIES_TYPE = 1000506001,
    SINT8 = 3, /* VkComponentTypeKHR */
    SINT32 = 5,
    SUBGROUP = 3, /* VkScopeKHR */
    LANES = 32,
    SIDE = 16,
    MAX_SHAPES = 256
};

struct shape {
    VkStructureType type;
    void *next;
    uint32_t m, n, k, a, b, c, result;
    VkBool32 saturates;
    uint32_t scope;
};

typedef VkResult(VKAPI_PTR *find_shapes)(VkPhysicalDevice, uint32_t *, struct shape *);

void *qn_vk_link_matrix_features(qn_vk_matrix_features *f, void *next)
{
    *f = (qn_vk_matrix_features){ 0 };
    f->matrices.sType = (VkStructureType)FEATURES_TYPE;
    f->matrices.pNext = &f->model;
    f->matrices.cooperativeMatrix = VK_TRUE;
    f->model.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES;
    f->model.pNext = &f->int8;
    f->model.vulkanMemoryModel = VK_TRUE;
    f->int8.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES;
    f->int8.pNext = next;
    f->int8.shaderInt8 = VK_TRUE;
    return &f->matrices;
}

static bool has_features(const qn_vk_instance *instance, VkPhysicalDevice physical)
{
    qn_vk_matrix_features f;
    VkPhysicalDeviceSubgroupProperties subgroups = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES };
    VkPhysicalDeviceProperties2 properties = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                               .pNext = &subgroups };
    VkPhysicalDeviceFeatures2 features = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                           .pNext = qn_vk_link_matrix_features(&f, NULL) };
    f.matrices.cooperativeMatrix = f.model.vulkanMemoryModel = f.int8.shaderInt8 = VK_FALSE;
    instance->call.vkGetPhysicalDeviceFeatures2(physical, &features);
    instance->call.vkGetPhysicalDeviceProperties2(physical, &properties);
    return f.matrices.cooperativeMatrix && f.model.vulkanMemoryModel && f.int8.shaderInt8 &&
           subgroups.subgroupSize == LANES;
}

uint32_t qn_vk_find_matrices(const qn_vk_instance *instance, VkPhysicalDevice physical)
{
    const find_shapes find = (find_shapes)instance->loader->vkGetInstanceProcAddr(
        instance->handle, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
    struct shape shapes[MAX_SHAPES] = { 0 };
    uint32_t n = MAX_SHAPES, depth = 0;
    for (uint32_t i = 0; i < n; i++)
        shapes[i].type = (VkStructureType)PROPERTIES_TYPE;
    if (!find || !has_features(instance, physical) || find(physical, &n, shapes) < 0)
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct shape *s = &shapes[i];
        if (s->m == SIDE && s->n == SIDE && (s->k == 2 * SIDE || s->k == SIDE) && s->a == SINT8 && s->b == SINT8 &&
            s->c == SINT32 && s->result == SINT32 && !s->saturates && s->scope == SUBGROUP && s->k > depth)
            depth = s->k;
    }
    return depth;
}
