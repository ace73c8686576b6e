/* The functions of the Vulkan loader and of a device, found at run time: this program is not linked with Vulkan, and
 * starts without it. */
#ifndef QN_VULKAN_RUNTIME_DRIVER_H
#define QN_VULKAN_RUNTIME_DRIVER_H

#include "base/status.h"

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan_core.h>

#define QN_VK_INSTANCE_FUNCTIONS(F)                                                                                    \
    F(vkDestroyInstance)                                                                                               \
    F(vkEnumeratePhysicalDevices)                                                                                      \
    F(vkEnumerateDeviceExtensionProperties)                                                                            \
    F(vkGetPhysicalDeviceProperties2)                                                                                  \
    F(vkGetPhysicalDeviceFeatures2)                                                                                    \
    F(vkGetPhysicalDeviceMemoryProperties)                                                                             \
    F(vkGetPhysicalDeviceQueueFamilyProperties)                                                                        \
    F(vkCreateDevice)                                                                                                  \
    F(vkGetDeviceProcAddr)

#define QN_VK_DEVICE_FUNCTIONS(F)                                                                                      \
    F(vkDestroyDevice)                                                                                                 \
    F(vkGetDeviceQueue)                                                                                                \
    F(vkDeviceWaitIdle)                                                                                                \
    F(vkAllocateMemory)                                                                                                \
    F(vkFreeMemory)                                                                                                    \
    F(vkMapMemory)                                                                                                     \
    F(vkCreateBuffer)                                                                                                  \
    F(vkDestroyBuffer)                                                                                                 \
    F(vkGetBufferMemoryRequirements)                                                                                   \
    F(vkBindBufferMemory)                                                                                              \
    F(vkGetBufferDeviceAddress)                                                                                        \
    F(vkCreateShaderModule)                                                                                            \
    F(vkDestroyShaderModule)                                                                                           \
    F(vkCreatePipelineLayout)                                                                                          \
    F(vkDestroyPipelineLayout)                                                                                         \
    F(vkCreatePipelineCache)                                                                                           \
    F(vkDestroyPipelineCache)                                                                                          \
    F(vkGetPipelineCacheData)                                                                                          \
    F(vkCreateComputePipelines)                                                                                        \
    F(vkDestroyPipeline)                                                                                               \
    F(vkCreateCommandPool)                                                                                             \
    F(vkDestroyCommandPool)                                                                                            \
    F(vkAllocateCommandBuffers)                                                                                        \
    F(vkBeginCommandBuffer)                                                                                            \
    F(vkEndCommandBuffer)                                                                                              \
    F(vkResetCommandPool)                                                                                              \
    F(vkCmdBindPipeline)                                                                                               \
    F(vkCmdPushConstants)                                                                                              \
    F(vkCmdDispatch)                                                                                                   \
    F(vkCmdDispatchBase)                                                                                               \
    F(vkCmdPipelineBarrier)                                                                                            \
    F(vkCmdCopyBuffer)                                                                                                 \
    F(vkCmdFillBuffer)                                                                                                 \
    F(vkCreateQueryPool)                                                                                               \
    F(vkDestroyQueryPool)                                                                                              \
    F(vkCmdResetQueryPool)                                                                                             \
    F(vkCmdWriteTimestamp)                                                                                             \
    F(vkGetQueryPoolResults)                                                                                           \
    F(vkQueueSubmit)                                                                                                   \
    F(vkCreateFence)                                                                                                   \
    F(vkDestroyFence)                                                                                                  \
    F(vkWaitForFences)                                                                                                 \
    F(vkResetFences)

#define QN_VK_MEMBER(name) PFN_##name name;

/* The loader: the same in the whole process. */
typedef struct qn_vk_loader {
    PFN_vkGetInstanceProcAddr vkGetInstanceProcAddr;
    PFN_vkCreateInstance vkCreateInstance;
    PFN_vkEnumerateInstanceVersion vkEnumerateInstanceVersion;
} qn_vk_loader;

typedef struct qn_vk_instance_functions {
    QN_VK_INSTANCE_FUNCTIONS(QN_VK_MEMBER)
} qn_vk_instance_functions;

typedef struct qn_vk_device_functions {
    QN_VK_DEVICE_FUNCTIONS(QN_VK_MEMBER)
} qn_vk_device_functions;

/* qn_vk_loader_load - loads libvulkan. QN_ERR_UNSUPPORTED if it is not there; QN_ERR_INVALID in a child of the process
 * that called it first. From any thread. */
qn_status qn_vk_loader_load(const qn_vk_loader **loader);

/* qn_vk_check - returns QN_OK for VK_SUCCESS, else the error of a call with its name: QN_ERR_MEMORY for exhausted
 * memory, QN_ERR_UNSUPPORTED without a driver, else QN_ERR_DEVICE. */
qn_status qn_vk_check(VkResult result, const char *call);

#define QN_VK(functions, name, ...) qn_vk_check((functions)->name(__VA_ARGS__), #name)

#endif
