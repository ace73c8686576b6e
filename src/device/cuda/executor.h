/* Running a model's plan on a CUDA device (device/device.h). Weights are rearranged for the kernels as they are uploaded,
 * sessions live in the device's memory; what crosses the bus in a step is the rows of the tokens' embeddings, and logits. A
 * token that is decoded is one graph, captured once for each session. The same tokens in the same steps give the same bits from
 * run to run. */
#ifndef QN_DEVICE_CUDA_EXECUTOR_H
#define QN_DEVICE_CUDA_EXECUTOR_H

#include "base/team.h"
#include "device/device.h"
#include "kernels/kernels.h"

typedef struct qn_cuda_executor_params {
    int ordinal; /* of the device, from 0 */
    const qn_plan *plan;
    qn_team *team;                                /* for embeddings and for weights that are converted; outlives the device */
    const qn_kernels *kernels;                    /* the same */
    void (*on_log)(void *user, const char *line); /* may be NULL */
    void *user;
    const struct qn_cuda_driver *driver; /* both as in qn_cuda_params: NULL, but for tests */
    const struct qn_cuda_tools *tools;
} qn_cuda_executor_params;

/* qn_cuda_executor_create - a device that runs this plan, whose weights are still to be uploaded (qn_device_vtable.upload).
 * QN_ERR_UNSUPPORTED, saying what, for a machine without a GPU and for shapes that its kernels do not have. */
qn_status qn_cuda_executor_create(const qn_cuda_executor_params *params, qn_device **out);

#endif
