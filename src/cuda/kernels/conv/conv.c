/* Launches of conv.cu. */
#include "cuda/kernels/conv/conv.h"

#include "cuda/kernels/variants.h"
#include "cuda/kernels/conv/variants.def"

/* Blocks for each SM, so that all have work until the end. */
enum { BLOCKS_PER_SM = 8, MIN_BLOCK_TOKENS = 8, MAX_GRID_Y = 65535 };

/* Returns the number of thread blocks that the channels of a row take. */
static size_t channel_blocks(const qn_conv_args *args, bool is_aligned)
{
    const size_t of_block = QN_CONV_GPU_THREADS * (size_t)(is_aligned ? QN_CONV_GPU_CHANNELS : 1);
    return (args->channels + of_block - 1) / of_block;
}

static qn_status fill(const qn_conv_args *args, const char *function, size_t blocks, bool is_aligned, qn_launch *out)
{
    const size_t of_channels = channel_blocks(args, is_aligned);
    if (args->taps == 0 || args->taps > QN_CONV_GPU_MAX_TAPS)
        return qn_fail(QN_ERR_INVALID, "taps: %u, expected 1 to %d", args->taps, (int)QN_CONV_GPU_MAX_TAPS);
    if (blocks == 0 || blocks > INT32_MAX || of_channels == 0 || of_channels > MAX_GRID_Y)
        return qn_fail(QN_ERR_INVALID, "convolution on the GPU: %u channels of %u rows, expected 1 to %d of 1 to %d",
                       args->channels, args->rows, MAX_GRID_Y * QN_CONV_GPU_THREADS, INT32_MAX);
    *out = (qn_launch){ .variant = QN_GPU_VARIANT(conv, is_aligned ? QN_CONV_GPU_CHANNELS : 1),
                        .function = function,
                        .grid = { (uint32_t)blocks, (uint32_t)of_channels, 1 },
                        .block = { QN_CONV_GPU_THREADS, 1, 1 },
                        .args_bytes = sizeof *args,
                        .pdl = true };
    return QN_OK;
}

qn_status qn_conv_gpu_scan(qn_conv_args *args, bool is_aligned, uint32_t n_sms, qn_launch *out)
{
    const size_t of_channels = channel_blocks(args, is_aligned);
    args->block_tokens = QN_CONV_GPU_MAX_BLOCK_TOKENS;
    while (args->block_tokens > MIN_BLOCK_TOKENS &&
           args->rows / args->block_tokens * of_channels < (size_t)BLOCKS_PER_SM * n_sms)
        args->block_tokens /= 2;
    return fill(args, args->taps > QN_CONV_GPU_FEW_TAPS ? "qn_conv_scan_long" : "qn_conv_scan",
                ((size_t)args->rows + args->block_tokens - 1) / args->block_tokens, is_aligned, out);
}

qn_status qn_conv_gpu_final(const qn_conv_args *args, bool is_aligned, qn_launch *out)
{
    return fill(args, "qn_conv_final", args->sequences, is_aligned, out);
}

qn_status qn_conv_gpu_step(const qn_conv_args *args, bool is_aligned, qn_launch *out)
{
    return fill(args, args->taps > QN_CONV_GPU_FEW_TAPS ? "qn_conv_step_long" : "qn_conv_step", args->sequences,
                is_aligned, out);
}
