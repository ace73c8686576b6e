/* The Vulkan devices of this machine: an instance, and the list of its devices that quern may take. */
#ifndef QN_VULKAN_RUNTIME_INSTANCE_H
#define QN_VULKAN_RUNTIME_INSTANCE_H

#include "vulkan/runtime/driver.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { QN_VK_MAX_DEVICES = 16, QN_VK_REASON = 96, QN_VK_MESSAGE = 256 };

/* Features that are used where a device has them; no result depends on them. QN_VULKAN_OFF, a list of their names with
 * commas between them, takes them away: of `lanes` and `shared` what every device has is left. Without `addresses` a
 * device cannot be used. */
typedef struct qn_vk_features {
    bool dot;              /* integer dot products of four int8, accelerated */
    uint32_t matrix_depth; /* matrix: K of products of int8 matrices of 16 x K and K x 16; 0: none */
    uint32_t lanes;        /* the most in a workgroup; at least 128 */
    uint32_t shared_bytes; /* shared memory of a workgroup; at least 16 KiB */
} qn_vk_features;

typedef struct qn_vk_info {
    VkPhysicalDevice physical;
    char name[VK_MAX_PHYSICAL_DEVICE_NAME_SIZE];
    VkPhysicalDeviceType type;
    uint32_t api, driver;   /* versions */
    uint32_t queue_family;  /* with compute, if possible without graphics */
    uint32_t clock_bits;    /* of the queue's clock; 0: it has none */
    double tick;            /* of the clock, in seconds */
    uint64_t memory_bytes;  /* of the heaps on the device */
    uint64_t largest_bytes; /* of one allocation */
    qn_vk_features features;
    char unfit[QN_VK_REASON]; /* why quern cannot use it: "no compute queue"; "" if it can */
} qn_vk_info;

/* Messages of the validation layer, which any thread may add to. The first one is kept. */
typedef struct qn_vk_messages {
    atomic_size_t n;
    char first[QN_VK_MESSAGE];
} qn_vk_messages;

typedef struct qn_vk_instance {
    const qn_vk_loader *loader;
    VkInstance handle;
    qn_vk_instance_functions call;
    /* By which `vulkan:N` counts: discrete GPUs, integrated ones, others, those that cannot be used; without those of
     * type CPU. */
    qn_vk_info devices[QN_VK_MAX_DEVICES];
    size_t n_devices;
    VkDebugUtilsMessengerEXT messenger;
    qn_vk_messages *messages; /* NULL: no validation layer */
} qn_vk_instance;

/* qn_vk_instance_open - opens an instance and lists its devices. QN_ERR_UNSUPPORTED if there is no loader, no driver or
 * no device. Close with qn_vk_instance_close, also after an error.
 *
 * QN_VULKAN_CPU=1: devices of type CPU (lavapipe, SwiftShader) are listed too, for tests. QN_VULKAN_VALIDATE=1: the
 * validation layer checks all calls and their synchronisation, or =gpu: the addresses that kernels access; its first
 * message is an error of the next submission, and without the layer opening fails. */
qn_status qn_vk_instance_open(qn_vk_instance *instance);
void qn_vk_instance_close(qn_vk_instance *instance);

/* qn_vk_check_messages - QN_ERR_DEVICE with the first message of the validation layer, if there is one. */
qn_status qn_vk_check_messages(const qn_vk_instance *instance);

/* qn_vk_find_device - finds device `ordinal`. QN_ERR_UNSUPPORTED if it is not there or unfit. */
qn_status qn_vk_find_device(const qn_vk_instance *instance, int ordinal, const qn_vk_info **info);

/* qn_vk_type_name - returns "discrete GPU" and the like. */
const char *qn_vk_type_name(VkPhysicalDeviceType type);

#endif
