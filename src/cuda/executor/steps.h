/* Steps of any rows: as a graph for a decode step, as individual launches otherwise; queued, sampled and finished as
 * qn_device_vtable says. */
#ifndef QN_CUDA_EXECUTOR_STEPS_H
#define QN_CUDA_EXECUTOR_STEPS_H

#include "cuda/executor/model.h"

/* qn_device_vtable.run, launch, sample, finish */
qn_status qn_cuda_run_step(qn_device *device, const qn_step *step);
qn_status qn_cuda_launch_step(qn_device *device, const qn_step *step);
qn_status qn_cuda_sample_step(qn_device *device);
qn_status qn_cuda_finish_step(qn_device *device);

/* qn_cuda_flights_create - flights of no step. Free with qn_cuda_flights_free, also after an error. */
qn_status qn_cuda_flights_create(qn_cuda *cuda, qn_cuda_flights *flights);
void qn_cuda_flights_free(qn_cuda *cuda, qn_cuda_flights *flights);

#endif
