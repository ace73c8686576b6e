/* The memory bandwidth of a model's device, for the benchmark of the CLI. Not part of the public interface. */
#ifndef QN_ENGINE_READ_RATE_H
#define QN_ENGINE_READ_RATE_H

#include "quern/quern.h"

/* qn_model_read_rate - measure the read bandwidth of the device's memory.
 *
 *   rate   bytes per second
 *
 * Any thread. It holds the model's lock, so the model's sessions are not evaluated meanwhile. QN_ERR_UNSUPPORTED for
 * the CPU, whose bandwidth depends on the number of threads. */
qn_status qn_model_read_rate(qn_model *model, double *rate);

#endif
