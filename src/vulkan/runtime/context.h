/* The struct of a device, for the files of this folder. */
#ifndef QN_VULKAN_RUNTIME_CONTEXT_H
#define QN_VULKAN_RUNTIME_CONTEXT_H

#include "vulkan/runtime/runtime.h"

#include <pthread.h>

typedef struct qn_vk_pipeline {
    const qn_vk_shader *shader;
    uint32_t constants[QN_VK_CONSTANTS];
    VkPipeline handle;
    struct qn_vk_pipeline *next;
} qn_vk_pipeline;

struct qn_vk {
    qn_vk_instance instance;
    qn_vk_info info;
    VkPhysicalDeviceMemoryProperties memory;
    VkDevice device;
    VkQueue queue;
    qn_vk_device_functions call;
    VkPipelineLayout layout;
    pthread_mutex_t queue_lock; /* held while a thread submits */
    pthread_mutex_t copy_lock;  /* protects the members below */
    bool has_locks;
    qn_vk_commands copies;
    qn_vk_buffer staging;
    atomic_size_t n_barriers;
    atomic_bool is_profiled;
    atomic_bool is_lost;           /* the driver has reset the device: all calls fail */
    atomic_ullong n_allocated;     /* bytes of all buffers */
    pthread_mutex_t pipeline_lock; /* protects `pipelines` */
    qn_vk_pipeline *pipelines;
    VkPipelineCache cache; /* VK_NULL_HANDLE: none */
    size_t cache_bytes;    /* of what was read from disk */
};

/* qn_vk_find_pipeline - finds or compiles the pipeline of a launch. From any thread. */
qn_status qn_vk_find_pipeline(qn_vk *vk, const qn_vk_launch *launch, VkPipeline *pipeline);
void qn_vk_free_pipelines(qn_vk *vk);

#endif
