/* Measurements of a model's device, for the benchmark of the CLI: its memory bandwidth, and where its time goes. Not
 * part of the public interface. */
#ifndef QN_ENGINE_READ_RATE_H
#define QN_ENGINE_READ_RATE_H

#include "device/profile.h"
#include "quern/quern.h"

/* qn_model_read_rate - measure the read bandwidth of the device's memory.
 *
 *   rate   bytes per second
 *
 * Any thread. It holds the model's lock, so the model's sessions are not evaluated meanwhile. QN_ERR_UNSUPPORTED for
 * the CPU, whose bandwidth depends on the number of threads. */
qn_status qn_model_read_rate(qn_model *model, double *rate);

/* qn_model_profile_start - begin to measure where the time of the model's steps goes (device/profile.h), those of all
 * its sessions and schedulers. qn_model_profile_stop ends it and adds the times to `report`, which is zeros at first.
 *
 * Any thread; both wait for a step that is running. QN_ERR_UNSUPPORTED on a device other than the CPU,
 * QN_ERR_MEMORY. */
qn_status qn_model_profile_start(qn_model *model);
void qn_model_profile_stop(qn_model *model, qn_profile *report);

#endif
