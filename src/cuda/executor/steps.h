/* Steps of any rows: a decode step is one graph, another step is individual launches. Steps are queued, sampled and
 * finished as qn_device_vtable specifies, by one thread at a time, which does not hold stream_lock: these functions
 * take it. */
#ifndef QN_CUDA_EXECUTOR_STEPS_H
#define QN_CUDA_EXECUTOR_STEPS_H

#include "cuda/executor/model.h"

/* qn_cuda_run_step - Implements qn_device_vtable.run. */
qn_status qn_cuda_run_step(qn_device *device, const qn_step *step);

/* qn_cuda_launch_step - Implements qn_device_vtable.launch. */
qn_status qn_cuda_launch_step(qn_device *device, const qn_step *step);

/* qn_cuda_sample_step - Implements qn_device_vtable.sample. */
qn_status qn_cuda_sample_step(qn_device *device);

/* qn_cuda_finish_step - Implements qn_device_vtable.finish. */
qn_status qn_cuda_finish_step(qn_device *device);

/* qn_cuda_flights_create - Creates the events and pieces of *flights, with no step launched. Free with
 * qn_cuda_flights_free, also after an error. */
qn_status qn_cuda_flights_create(qn_cuda *cuda, qn_cuda_flights *flights);

/* qn_cuda_flights_free - Frees the events and pieces of *flights, after all steps have finished. */
void qn_cuda_flights_free(qn_cuda *cuda, qn_cuda_flights *flights);

#endif
