/* Cooperative matrices of integers (VK_KHR_cooperative_matrix), which Debian 12's headers of Vulkan lack. */
#ifndef QN_VULKAN_RUNTIME_MATRICES_H
#define QN_VULKAN_RUNTIME_MATRICES_H

#include "vulkan/runtime/instance.h"

#define QN_VK_MATRIX_EXTENSION "VK_KHR_cooperative_matrix"

/* qn_vk_find_matrices - returns K if a device has products of int8 matrices of 16 x K and K x 16, K 32 or 16, with sums
 * of int32, in subgroups of 32 lanes, and all that the kernels with matrices need; else 0. The device has the
 * extension. */
uint32_t qn_vk_find_matrices(const qn_vk_instance *instance, VkPhysicalDevice physical);

/* The features to enable on such a device, linked: pNext of the last one is `next`. */
typedef struct qn_vk_matrix_features {
    struct {
        VkStructureType sType;
        void *pNext;
        VkBool32 cooperativeMatrix, cooperativeMatrixRobustBufferAccess;
    } matrices;
    VkPhysicalDeviceVulkanMemoryModelFeatures model;
    VkPhysicalDeviceShaderFloat16Int8Features int8;
} qn_vk_matrix_features;

/* qn_vk_link_matrix_features - asks for the features. Returns the first struct of the chain. */
void *qn_vk_link_matrix_features(qn_vk_matrix_features *features, void *next);

#endif
