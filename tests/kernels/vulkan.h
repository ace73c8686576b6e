/* The Vulkan device under test: arrays with guards on both sides, launches that end the program on failure. */
#ifndef QN_CHECK_VULKAN_H
#define QN_CHECK_VULKAN_H

#include "check.h"
#include "vulkan/kernels/kernels.h"

extern const qn_checked_backend qn_checked_vulkan;

/* An array on the device. All are freed by qn_release. */
typedef struct qn_vk_array {
    uint64_t at; /* its address */
    size_t bytes;
    qn_vk_buffer block;
} qn_vk_array;

/* qn_vk_new_array - creates an array of poison (all ones); qn_vk_array_of - with a copy of memory of qn_new. */
qn_vk_array *qn_vk_new_array(size_t bytes);
qn_vk_array *qn_vk_array_of(const void *memory);

/* qn_vk_contents - returns a copy of an array. */
void *qn_vk_contents(const qn_vk_array *array);

/* qn_vk_device_info - returns the properties of the device. */
const qn_vk_info *qn_vk_device_info(void);

/* qn_vk_poison - fills bytes [at, at + bytes) of an array with poison. */
void qn_vk_poison(const qn_vk_array *array, size_t at, size_t bytes);

/* qn_vk_bench_launch - times a launch, which processes `units` of `unit`: many in a run of commands, each after the one
 * before. qn_vk_bench_launches - with n_args arguments in turn. */
void qn_vk_bench_launch(const char *op, const char *shape, double units, const char *unit, qn_vk_launch launch,
                        const void *args);
void qn_vk_bench_launches(const char *op, const char *shape, double units, const char *unit, qn_vk_launch launch,
                          const void *args, size_t n_args);

/* qn_vk_bench_steps - times launches of any kinds, once each and one after the other, as the n_parts equal parts that
 * they are: a part processes `units`. */
typedef struct qn_vk_step {
    qn_vk_launch launch;
    const void *args;
} qn_vk_step;
void qn_vk_bench_steps(const char *op, const char *shape, double units, const char *unit, const qn_vk_step *steps,
                       size_t n_steps, size_t n_parts);

/* qn_vk_launch_now - runs a launch and waits for it. */
void qn_vk_launch_now(qn_vk_launch launch, const void *args);

/* ---- Operations ---- */

void qn_check_vulkan_rows(bool bench);
void qn_check_vulkan_matmul(bool bench);
void qn_check_vulkan_attention(bool bench);
void qn_check_vulkan_prepare(bool bench);
void qn_check_vulkan_deltanet(bool bench);
void qn_check_vulkan_sample(bool bench);

#endif
