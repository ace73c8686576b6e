/* Launches of the kernels that measure a GPU's limits. */
#include "cuda/kernels/peak/peak.h"

#include "cuda/kernels/variants.h"
#include "cuda/kernels/peak/variants.def"

qn_status qn_peak_read_plan(uint64_t out, uint64_t from, size_t bytes, uint32_t n_sms, qn_peak_read *plan)
{
    if (bytes % 16 || from % 16)
        return qn_fail(QN_ERR_INVALID, "read of %zu bytes: size and address must be multiples of 16", bytes);
    *plan = (qn_peak_read){
        .launch = { .variant.source = &peak_source,
                    .function = "qn_peak_read_all",
                    .grid = { n_sms, 1, 1 },
                    .block = { QN_PEAK_THREADS, 1, 1 },
                    .args_bytes = sizeof plan->args },
        .args = { .out = out, .from = from, .n_uint4 = bytes / 16 },
    };
    return QN_OK;
}

qn_status qn_peak_copy_plan(uint64_t to, uint64_t from, size_t bytes, uint32_t n_sms, qn_peak_copy *plan)
{
    if (bytes % 16 || from % 16 || to % 16)
        return qn_fail(QN_ERR_INVALID, "copy of %zu bytes: size and addresses must be multiples of 16", bytes);
    *plan = (qn_peak_copy){
        .launch = { .variant.source = &peak_source,
                    .function = "qn_peak_copy_all",
                    .grid = { n_sms, 1, 1 },
                    .block = { QN_PEAK_THREADS, 1, 1 },
                    .args_bytes = sizeof plan->args },
        .args = { .to = to, .from = from, .n_uint4 = bytes / 16 },
    };
    return QN_OK;
}

void qn_peak_mma_plan(uint64_t out, bool bf16, uint32_t n_steps, uint32_t n_sms, qn_peak_mma *plan)
{
    const double warps = (double)n_sms * QN_PEAK_THREADS / 32;
    *plan = (qn_peak_mma){
        .launch = { .variant.source = &peak_source,
                    .function = "qn_peak_mma",
                    .grid = { n_sms, 1, 1 },
                    .block = { QN_PEAK_THREADS, 1, 1 },
                    .args_bytes = sizeof plan->args },
        .args = { .out = out, .n_steps = n_steps, .bf16 = bf16 },
        .ops = warps * n_steps * QN_PEAK_MMAS * (bf16 ? QN_PEAK_BF16_OPS : QN_PEAK_INT8_OPS),
    };
}

void qn_peak_empty_plan(bool pdl, qn_launch *launch)
{
    *launch = (qn_launch){ .variant.source = &peak_source,
                           .function = "qn_peak_empty",
                           .grid = { 1, 1, 1 },
                           .block = { 32, 1, 1 },
                           .args_bytes = sizeof(qn_peak_empty_args),
                           .pdl = pdl };
}
