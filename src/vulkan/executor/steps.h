/* Running steps: batches of rows, their inputs, commands, logits and sampling. */
#ifndef QN_VULKAN_EXECUTOR_STEPS_H
#define QN_VULKAN_EXECUTOR_STEPS_H

#include "vulkan/executor/record.h"
#include "vulkan/executor/sampling.h"

enum { QN_VK_FLIGHT_COMMANDS = 3 /* of a step: operations, a copy of logits, sampling */ };

/* What a block's step has queued. */
typedef struct qn_vk_flight {
    bool is_queued;       /* its last commands are in flight, or finished but not passed on */
    bool awaits_sampling; /* requests are prepared, and sampling is queued, by qn_vk_sample_step */
    bool is_done;         /* the results have been passed on */
    qn_status status;     /* of waiting for it when the next step was launched */
    float *logits;        /* of the caller; NULL: none */
    qn_sample_request *requests;
    qn_vk_sampling sampling; /* of these requests, or of these logits */
    qn_vk_submission submission;
    const qn_vk_commands *commands[QN_VK_FLIGHT_COMMANDS]; /* the last ones that it queued */
    size_t n_commands;
    size_t n_timed; /* rows of a prompt, which take the time from `submitted` on; 0: it is not noted */
    double submitted;
} qn_vk_flight;

/* Commands of a block's step, which are recorded for it, or once for each bucket of decode steps. */
typedef struct qn_vk_step_commands {
    qn_vk_commands step, copies; /* copies: of logits to the host */
    qn_vk_commands decode[QN_GPU_N_BUCKETS];
    const qn_vk_cache_format *recorded[QN_GPU_N_BUCKETS]; /* the format that they were recorded for; NULL: none */
} qn_vk_step_commands;

/* Where the time of steps goes. */
typedef struct qn_vk_profile {
    double *seconds; /* [plan->n_ops + 1] of operations, and of sampling; NULL: no profile */
    size_t n_steps;
    double began;
} qn_vk_profile;

/* A model on the device: the struct that owns all parts of the executor. */
typedef struct qn_vk_model {
    qn_device base;
    qn_vk_common common;
    qn_vk_weights weights;
    qn_vk_workspace workspace;
    qn_vk_caches caches;
    qn_vk_sampler sampler;
    bool *barriers;       /* [plan->n_ops] */
    qn_gpu_piece *pieces; /* [QN_GPU_MAX_SEQUENCES] of the current batch */
    qn_vk_step_commands commands[QN_VK_BLOCKS];
    qn_vk_flight flights[QN_VK_BLOCKS];
    uint64_t n_launched, n_finished; /* steps: step i has block i % QN_VK_BLOCKS */
    size_t timed_rows;               /* of the prompt before, in one step; 0: none yet */
    double timed_seconds;            /* that the step took */
    qn_vk_profile profile;
} qn_vk_model;

/* qn_vk_steps_create - creates the commands and submissions of *model. Free with qn_vk_steps_free, also after an error,
 * which waits for steps in flight. qn_vk_steps_forget - drops recorded commands: the workspace has moved. */
qn_status qn_vk_steps_create(qn_vk_model *model);
void qn_vk_steps_free(qn_vk_model *model);
void qn_vk_steps_forget(qn_vk_model *model);

/* qn_vk_run_step, qn_vk_launch_step, qn_vk_sample_step, qn_vk_finish_step, qn_vk_profile_start, qn_vk_profile_stop -
 * implement qn_device_vtable. */
qn_status qn_vk_run_step(qn_device *device, const qn_step *step);
qn_status qn_vk_launch_step(qn_device *device, const qn_step *step);
qn_status qn_vk_sample_step(qn_device *device);
qn_status qn_vk_finish_step(qn_device *device);
qn_status qn_vk_profile_start(qn_device *device);
void qn_vk_profile_stop(qn_device *device, qn_profile *report);

#endif
