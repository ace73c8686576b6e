/* A Vulkan device: its memory, its pipelines, and commands in its queue. All kernels read and write memory by address.
 *
 * Threads: any thread may allocate, free, read and write buffers; one thread at a time uses a qn_vk_commands. */
#ifndef QN_VULKAN_RUNTIME_RUNTIME_H
#define QN_VULKAN_RUNTIME_RUNTIME_H

#include "vulkan/runtime/instance.h"

typedef struct qn_vk qn_vk;

/* qn_vk_open - opens device `ordinal`. Errors are those of qn_vk_instance_open and qn_vk_find_device. Close with
 * qn_vk_close, which accepts NULL. */
qn_status qn_vk_open(int ordinal, qn_vk **out);
void qn_vk_close(qn_vk *vk);

const qn_vk_info *qn_vk_get_info(const qn_vk *vk);

/* ---- Buffers ---- */

typedef struct qn_vk_buffer {
    VkBuffer handle;
    VkDeviceMemory memory;
    uint64_t address; /* 0: none */
    size_t bytes;
    uint8_t *host; /* mapped and coherent; NULL: the host copies */
} qn_vk_buffer;

typedef enum qn_vk_place {
    QN_VK_ON_DEVICE, /* mapped only if all of the device's memory is the host's */
    QN_VK_SHARED,    /* mapped; on the device if possible: the host writes, the device reads */
    QN_VK_ON_HOST    /* mapped and cached: the device writes, the host reads */
} qn_vk_place;

/* qn_vk_alloc - allocates a buffer, whose contents are arbitrary. QN_ERR_MEMORY, naming `what`, if it does not fit; the
 * buffer is then zeroed. Free with qn_vk_free, which accepts a zeroed buffer; no work may use it. */
qn_status qn_vk_alloc(qn_vk *vk, size_t bytes, qn_vk_place place, const char *what, qn_vk_buffer *buffer);
void qn_vk_free(qn_vk *vk, qn_vk_buffer *buffer);

/* qn_vk_write, qn_vk_read - copy bytes from and to the host, and wait. qn_vk_zero fills a buffer with zeros. */
qn_status qn_vk_write(qn_vk *vk, const qn_vk_buffer *to, size_t at, const void *from, size_t bytes);
qn_status qn_vk_read(qn_vk *vk, void *to, const qn_vk_buffer *from, size_t at, size_t bytes);
qn_status qn_vk_zero(qn_vk *vk, const qn_vk_buffer *buffer);

/* ---- Pipelines ---- */

enum { QN_VK_MAX_ARGS = 128 /* bytes: every device has as many push constants */, QN_VK_CONSTANTS = 10 };

/* A shader, from which pipelines are made with specialisation constants. Static. */
typedef struct qn_vk_shader {
    const char *name;
    const uint32_t *code;
    size_t bytes;
    size_t args_bytes; /* of its push constants */
} qn_vk_shader;

/* A pipeline and its grid. */
typedef struct qn_vk_launch {
    const qn_vk_shader *shader;
    uint32_t constants[QN_VK_CONSTANTS];
    uint32_t groups[3];
} qn_vk_launch;

/* ---- Commands ---- */

/* Commands that are recorded once and may be run many times.
 *
 * QN_VULKAN_REVERSE=1, for tests: dispatches between two barriers are recorded in reverse order. They must not depend
 * on each other, so all results stay the same; where a barrier is missing they change. The validation layer does not
 * see what kernels read and write by address. */
typedef struct qn_vk_commands {
    VkCommandPool pool;
    VkCommandBuffer handle;
    VkFence fence;
    struct qn_vk_held *held;   /* dispatches since the last barrier; NULL: they are recorded at once */
    struct qn_vk_marks *marks; /* of a profile; NULL: none */
    uint32_t pieces; /* into which the last dimension of each grid is divided: slow devices would be reset during a long
                        launch; 0: one */
} qn_vk_commands;

qn_status qn_vk_commands_create(qn_vk *vk, qn_vk_commands *commands);
void qn_vk_commands_free(qn_vk *vk, qn_vk_commands *commands);

/* qn_vk_begin - begins to record, dropping earlier commands. qn_vk_end - ends; what was written is then visible to the
 * host. */
qn_status qn_vk_begin(qn_vk *vk, qn_vk_commands *commands);
qn_status qn_vk_end(qn_vk *vk, const qn_vk_commands *commands);

/* qn_vk_dispatch - records a launch; args are those of its shader, and copied. The pipeline is compiled when it is
 * first needed. qn_vk_barrier - what is recorded later begins when all launches before have ended, and sees what they
 * wrote. */
qn_status qn_vk_dispatch(qn_vk *vk, const qn_vk_commands *commands, const qn_vk_launch *launch, const void *args);
void qn_vk_barrier(qn_vk *vk, const qn_vk_commands *commands);

/* qn_vk_set_profiled - from now on the device notes when it reaches the marks of commands, or not. Commands must be
 * recorded anew. QN_ERR_UNSUPPORTED if its queue has no clock. */
qn_status qn_vk_set_profiled(qn_vk *vk, bool is_profiled);

/* qn_vk_mark - records a mark, if the device is profiled: the time since the mark before, or since the start of the
 * commands, is that of `label`. qn_vk_add_times - adds the seconds of each label [n_labels] when the commands have run.
 */
void qn_vk_mark(qn_vk *vk, const qn_vk_commands *commands, size_t label);
qn_status qn_vk_add_times(qn_vk *vk, const qn_vk_commands *commands, double *seconds, size_t n_labels);

/* qn_vk_count_barriers - returns how often qn_vk_barrier was called for a device. */
size_t qn_vk_count_barriers(const qn_vk *vk);

/* qn_vk_copy - records a copy of `bytes` bytes from the start of buffer `from` plus from_at. qn_vk_barrier_of_copies -
 * what is recorded later begins when all copies before have ended, and sees what they wrote. */
void qn_vk_barrier_of_copies(qn_vk *vk, const qn_vk_commands *commands);
void qn_vk_copy(qn_vk *vk, const qn_vk_commands *commands, const qn_vk_buffer *to, size_t to_at,
                const qn_vk_buffer *from, size_t from_at, size_t bytes);

/* qn_vk_run - runs the commands and waits for them. */
qn_status qn_vk_run(qn_vk *vk, const qn_vk_commands *commands);

/* A submission in flight, or none. */
typedef struct qn_vk_submission {
    VkFence fence;
    bool is_in_flight;
} qn_vk_submission;

qn_status qn_vk_submission_create(qn_vk *vk, qn_vk_submission *submission);
void qn_vk_submission_free(qn_vk *vk, qn_vk_submission *submission);

/* qn_vk_submit - queues commands [n], in order, after all that was queued before. `submission` is then in flight until
 * they have run; NULL: what is queued after them has one. qn_vk_wait - waits for a submission, if it is in flight. */
qn_status qn_vk_submit(qn_vk *vk, const qn_vk_commands *const *commands, size_t n, qn_vk_submission *submission);
qn_status qn_vk_wait(qn_vk *vk, qn_vk_submission *submission);

/* qn_vk_drain - waits for all that was queued. */
void qn_vk_drain(qn_vk *vk);

#endif
