/* What a model's device could reach at best: for the program's benchmark, and no part of the library's interface. */
#ifndef QN_ENGINE_READ_RATE_H
#define QN_ENGINE_READ_RATE_H

#include "quern/quern.h"

/* qn_model_read_rate - bytes a second that the device which runs the model reads of its memory, measured now, while none of its
 * sessions is evaluated. QN_ERR_UNSUPPORTED for the CPU, where the number of threads decides. */
qn_status qn_model_read_rate(qn_model *model, double *rate);

#endif
