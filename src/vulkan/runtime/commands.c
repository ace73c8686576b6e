/* Recording commands, and running them. */
#include "vulkan/runtime/context.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* Dispatches that are to be recorded in reverse order. */
enum { MAX_HELD = 64 };

struct qn_vk_held {
    size_t n;
    struct {
        VkPipeline pipeline;
        uint32_t groups[3], args_bytes, pieces;
        uint8_t args[QN_VK_MAX_ARGS];
    } at[MAX_HELD];
};

/* ---- Marks of a profile ---- */

enum { MAX_MARKS = 4096 };

struct qn_vk_marks {
    VkQueryPool pool;
    size_t n;
    size_t labels[MAX_MARKS];
    uint64_t ticks[MAX_MARKS];
};

static qn_status create_marks(qn_vk *vk, struct qn_vk_marks **out)
{
    const VkQueryPoolCreateInfo info = { .sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                         .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                         .queryCount = MAX_MARKS };
    struct qn_vk_marks *marks;
    QN_TRY(qn_alloc(&marks, 1, sizeof *marks, "profile"));
    *marks = (struct qn_vk_marks){ 0 };
    const qn_status status = QN_VK(&vk->call, vkCreateQueryPool, vk->device, &info, NULL, &marks->pool);
    if (status) {
        qn_free(marks);
        return status;
    }
    *out = marks;
    return QN_OK;
}

static void free_marks(qn_vk *vk, struct qn_vk_marks *marks)
{
    if (marks)
        vk->call.vkDestroyQueryPool(vk->device, marks->pool, NULL);
    qn_free(marks);
}

qn_status qn_vk_set_profiled(qn_vk *vk, bool is_profiled)
{
    if (is_profiled && !vk->info.clock_bits)
        return qn_fail(QN_ERR_UNSUPPORTED, "no profile: the queue of %s has no clock", vk->info.name);
    atomic_store(&vk->is_profiled, is_profiled);
    return QN_OK;
}

/* Drops the marks of earlier commands, and sets the first one. */
static qn_status begin_marks(qn_vk *vk, qn_vk_commands *commands)
{
    if (!atomic_load(&vk->is_profiled)) {
        free_marks(vk, commands->marks);
        commands->marks = NULL;
        return QN_OK;
    }
    if (!commands->marks)
        QN_TRY(create_marks(vk, &commands->marks));
    commands->marks->n = 0;
    vk->call.vkCmdResetQueryPool(commands->handle, commands->marks->pool, 0, MAX_MARKS);
    qn_vk_mark(vk, commands, SIZE_MAX);
    return QN_OK;
}

void qn_vk_mark(qn_vk *vk, const qn_vk_commands *commands, size_t label)
{
    struct qn_vk_marks *marks = commands->marks;
    if (!marks || marks->n == MAX_MARKS)
        return;
    vk->call.vkCmdWriteTimestamp(commands->handle, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, marks->pool,
                                 (uint32_t)marks->n);
    marks->labels[marks->n++] = label;
}

qn_status qn_vk_add_times(qn_vk *vk, const qn_vk_commands *commands, double *seconds, size_t n_labels)
{
    struct qn_vk_marks *marks = commands->marks;
    const uint64_t mask = vk->info.clock_bits < 64 ? ((uint64_t)1 << vk->info.clock_bits) - 1 : UINT64_MAX;
    if (!marks || !marks->n)
        return QN_OK;
    QN_TRY(QN_VK(&vk->call, vkGetQueryPoolResults, vk->device, marks->pool, 0, (uint32_t)marks->n,
                 marks->n * sizeof *marks->ticks, marks->ticks, sizeof *marks->ticks,
                 VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT));
    for (size_t i = 1; i < marks->n; i++)
        if (marks->labels[i] < n_labels)
            seconds[marks->labels[i]] += (double)((marks->ticks[i] - marks->ticks[i - 1]) & mask) * vk->info.tick;
    return QN_OK;
}

/* ---- Recording ---- */

static qn_status hold_back(qn_vk_commands *commands)
{
    const char *reverse = getenv("QN_VULKAN_REVERSE");
    return reverse && !strcmp(reverse, "1") ? qn_alloc(&commands->held, 1, sizeof *commands->held, "commands") : QN_OK;
}

/* Records a launch in pieces of its grid's last dimension. */
static void record_dispatch(qn_vk *vk, const qn_vk_commands *commands, VkPipeline pipeline, const uint32_t *groups,
                            const void *args, uint32_t args_bytes, uint32_t pieces)
{
    const uint32_t n = groups[2], step = pieces && pieces < n ? (n + pieces - 1) / pieces : 1;
    vk->call.vkCmdBindPipeline(commands->handle, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    vk->call.vkCmdPushConstants(commands->handle, vk->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, args_bytes, args);
    if (pieces <= 1 || n == 1)
        vk->call.vkCmdDispatch(commands->handle, groups[0], groups[1], n);
    for (uint32_t at = 0; pieces > 1 && n > 1 && at < n; at += step)
        vk->call.vkCmdDispatchBase(commands->handle, 0, 0, at, groups[0], groups[1], n - at < step ? n - at : step);
}

static void record_held(qn_vk *vk, const qn_vk_commands *commands)
{
    struct qn_vk_held *held = commands->held;
    for (size_t i = held ? held->n : 0; i-- > 0;)
        record_dispatch(vk, commands, held->at[i].pipeline, held->at[i].groups, held->at[i].args,
                        held->at[i].args_bytes, held->at[i].pieces);
    if (held)
        held->n = 0;
}

qn_status qn_vk_commands_create(qn_vk *vk, qn_vk_commands *commands)
{
    const VkCommandPoolCreateInfo pool = { .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                           .queueFamilyIndex = vk->info.queue_family };
    VkCommandBufferAllocateInfo buffer = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                           .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                           .commandBufferCount = 1 };
    const VkFenceCreateInfo fence = { .sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO };
    *commands = (qn_vk_commands){ 0 };
    qn_status status = QN_VK(&vk->call, vkCreateCommandPool, vk->device, &pool, NULL, &commands->pool);
    buffer.commandPool = commands->pool;
    if (status == QN_OK)
        status = QN_VK(&vk->call, vkAllocateCommandBuffers, vk->device, &buffer, &commands->handle);
    if (status == QN_OK)
        status = QN_VK(&vk->call, vkCreateFence, vk->device, &fence, NULL, &commands->fence);
    if (status == QN_OK)
        status = hold_back(commands);
    if (status != QN_OK)
        qn_vk_commands_free(vk, commands);
    return status;
}

void qn_vk_commands_free(qn_vk *vk, qn_vk_commands *commands)
{
    if (commands->fence)
        vk->call.vkDestroyFence(vk->device, commands->fence, NULL);
    if (commands->pool)
        vk->call.vkDestroyCommandPool(vk->device, commands->pool, NULL);
    qn_free(commands->held);
    free_marks(vk, commands->marks);
    *commands = (qn_vk_commands){ 0 };
}

qn_status qn_vk_begin(qn_vk *vk, qn_vk_commands *commands)
{
    const VkCommandBufferBeginInfo info = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO };
    if (commands->held)
        commands->held->n = 0;
    QN_TRY(QN_VK(&vk->call, vkResetCommandPool, vk->device, commands->pool, 0));
    QN_TRY(QN_VK(&vk->call, vkBeginCommandBuffer, commands->handle, &info));
    return begin_marks(vk, commands);
}

static void record_barrier(qn_vk *vk, const qn_vk_commands *commands, VkPipelineStageFlags from, VkAccessFlags writes,
                           VkPipelineStageFlags to, VkAccessFlags reads)
{
    const VkMemoryBarrier barrier = { .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                      .srcAccessMask = writes,
                                      .dstAccessMask = reads };
    record_held(vk, commands);
    vk->call.vkCmdPipelineBarrier(commands->handle, from, to, 0, 1, &barrier, 0, NULL, 0, NULL);
}

void qn_vk_barrier(qn_vk *vk, const qn_vk_commands *commands)
{
    record_barrier(vk, commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
                   VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
    atomic_fetch_add(&vk->n_barriers, 1);
}

void qn_vk_barrier_of_copies(qn_vk *vk, const qn_vk_commands *commands)
{
    record_barrier(vk, commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
                   VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
                   VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_READ_BIT |
                       VK_ACCESS_TRANSFER_WRITE_BIT);
}

/* What reads next is the host, or copies and kernels of commands that are run later. */
qn_status qn_vk_end(qn_vk *vk, const qn_vk_commands *commands)
{
    record_barrier(vk, commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
                   VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
                   VK_PIPELINE_STAGE_HOST_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT | VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                   VK_ACCESS_HOST_READ_BIT | VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT |
                       VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
    return QN_VK(&vk->call, vkEndCommandBuffer, commands->handle);
}

qn_status qn_vk_dispatch(qn_vk *vk, const qn_vk_commands *commands, const qn_vk_launch *launch, const void *args)
{
    const uint32_t args_bytes = (uint32_t)launch->shader->args_bytes;
    struct qn_vk_held *held = commands->held;
    VkPipeline pipeline;
    QN_TRY(qn_vk_find_pipeline(vk, launch, &pipeline));
    if (!held) {
        record_dispatch(vk, commands, pipeline, launch->groups, args, args_bytes, commands->pieces);
        return QN_OK;
    }
    if (held->n == MAX_HELD)
        record_held(vk, commands);
    held->at[held->n].pipeline = pipeline;
    held->at[held->n].args_bytes = args_bytes;
    held->at[held->n].pieces = commands->pieces;
    memcpy(held->at[held->n].groups, launch->groups, sizeof launch->groups);
    memcpy(held->at[held->n++].args, args, args_bytes);
    return QN_OK;
}

void qn_vk_copy(qn_vk *vk, const qn_vk_commands *commands, const qn_vk_buffer *to, size_t to_at,
                const qn_vk_buffer *from, size_t from_at, size_t bytes)
{
    const VkBufferCopy region = { .srcOffset = from_at, .dstOffset = to_at, .size = bytes };
    vk->call.vkCmdCopyBuffer(commands->handle, from->handle, to->handle, 1, &region);
}

/* ---- Running ---- */

/* A device that was lost stays so for this process. */
static qn_status check_lost(qn_vk *vk, VkResult result, const char *call)
{
    if (result == VK_ERROR_DEVICE_LOST)
        atomic_store(&vk->is_lost, true);
    if (!atomic_load(&vk->is_lost))
        return qn_vk_check(result, call);
    return qn_fail(
        QN_ERR_DEVICE,
        "%s was lost (%s): its driver was reset, or work took longer than the system allows; the program has to "
        "be started again",
        vk->info.name, call);
}

static qn_status submit(qn_vk *vk, const VkCommandBuffer *handles, size_t n, VkFence fence)
{
    const VkSubmitInfo info = { .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                .commandBufferCount = (uint32_t)n,
                                .pCommandBuffers = handles };
    QN_TRY(qn_vk_check_messages(&vk->instance));
    pthread_mutex_lock(&vk->queue_lock);
    const VkResult result =
        atomic_load(&vk->is_lost) ? VK_ERROR_DEVICE_LOST : vk->call.vkQueueSubmit(vk->queue, 1, &info, fence);
    pthread_mutex_unlock(&vk->queue_lock);
    return check_lost(vk, result, "vkQueueSubmit");
}

static qn_status wait_for(qn_vk *vk, VkFence fence)
{
    QN_TRY(check_lost(vk, vk->call.vkWaitForFences(vk->device, 1, &fence, VK_TRUE, UINT64_MAX), "vkWaitForFences"));
    QN_TRY(QN_VK(&vk->call, vkResetFences, vk->device, 1, &fence));
    return qn_vk_check_messages(&vk->instance);
}

qn_status qn_vk_run(qn_vk *vk, const qn_vk_commands *commands)
{
    QN_TRY(submit(vk, &commands->handle, 1, commands->fence));
    return wait_for(vk, commands->fence);
}

qn_status qn_vk_submission_create(qn_vk *vk, qn_vk_submission *submission)
{
    const VkFenceCreateInfo fence = { .sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO };
    *submission = (qn_vk_submission){ 0 };
    return QN_VK(&vk->call, vkCreateFence, vk->device, &fence, NULL, &submission->fence);
}

void qn_vk_submission_free(qn_vk *vk, qn_vk_submission *submission)
{
    (void)qn_vk_wait(vk, submission);
    if (submission->fence)
        vk->call.vkDestroyFence(vk->device, submission->fence, NULL);
    *submission = (qn_vk_submission){ 0 };
}

qn_status qn_vk_submit(qn_vk *vk, const qn_vk_commands *const *commands, size_t n, qn_vk_submission *submission)
{
    enum { MOST = 4 };
    VkCommandBuffer handles[MOST];
    if (n > MOST)
        return qn_fail(QN_ERR_INVALID, "commands: %zu at once, at most %d are allowed", n, MOST);
    for (size_t i = 0; i < n; i++)
        handles[i] = commands[i]->handle;
    QN_TRY(submit(vk, handles, n, submission ? submission->fence : VK_NULL_HANDLE));
    if (submission)
        submission->is_in_flight = true;
    return QN_OK;
}

qn_status qn_vk_wait(qn_vk *vk, qn_vk_submission *submission)
{
    if (!submission->is_in_flight)
        return QN_OK;
    submission->is_in_flight = false;
    return wait_for(vk, submission->fence);
}

void qn_vk_drain(qn_vk *vk)
{
    pthread_mutex_lock(&vk->queue_lock);
    (void)vk->call.vkDeviceWaitIdle(vk->device);
    pthread_mutex_unlock(&vk->queue_lock);
}
