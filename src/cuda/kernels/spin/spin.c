/* The launch of spin.cu. */
#include "cuda/kernels/spin/spin.h"

#include "cuda/kernels/variants.h"
#include "cuda/kernels/spin/variants.def"

void qn_spin_plan(bool pdl, qn_launch *launch)
{
    *launch = (qn_launch){ .variant.source = &spin_source,
                           .function = "qn_spin",
                           .grid = { 1, 1, 1 },
                           .block = { 32, 1, 1 },
                           .args_bytes = sizeof(qn_spin_args),
                           .pdl = pdl };
}
