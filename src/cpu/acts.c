/* Computes the slices of activations, and rotates and quantises them. */
#include "cpu/acts.h"

#include "base/cpu.h"
#include "base/memory.h"
#include "kernels/matmul/blocks.h"
#include "kernels/matmul/packed.h"

/* Steps of decoding: of more rows, the first ones are in the caches of no other thread any more. */
enum { FEW_ROWS = 4 };

void qn_hadamard_blocks(const qn_executor *ex, const qn_plan_rotation *rotation, bool inverse, float *values,
                        size_t first, size_t n)
{
    for (size_t i = 0; i < n; i += rotation->block) {
        const float *signs = rotation->signs ? rotation->signs + first + i : NULL;
        ex->kernels->hadamard.block(values + i, rotation->block, inverse ? NULL : signs, inverse ? signs : NULL);
    }
}

size_t qn_act_slice_width(const qn_plan *plan, const qn_op_acts *acts)
{
    size_t values = QN_SUPER;
    for (size_t i = 0; i < acts->n; i++) {
        const size_t block = plan->acts[acts->at[i]].rotation.block;
        values = block > values ? block : values;
    }
    return values;
}

static size_t slices_per_row(const qn_executor *ex, const qn_op_acts *acts)
{
    const size_t values = qn_act_slice_width(ex->plan, acts);
    return (ex->plan->acts[acts->at[0]].width + values - 1) / values;
}

size_t qn_act_slices(const qn_executor *ex, const qn_op_acts *acts, size_t n_rows)
{
    for (size_t a = 0; a < acts->n; a++)
        qn_acts_select(&ex->workspace.acts[acts->at[a]], &ex->kernels->matmul, n_rows);
    return n_rows * slices_per_row(ex, acts);
}

/* Fetches lines that will be written. All threads have read them, so that each store would wait for the other caches,
 * one line after the other; together they take little longer than one. */
static void prefetch_to_write(const void *memory, size_t offset, size_t bytes)
{
    for (size_t at = 0; memory && at < bytes; at += QN_ALIGN) {
        const char *line = (const char *)memory + offset + at;
#if QN_X86
        __asm__ volatile("prefetchw %0" : : "m"(*line)); /* does nothing on processors before Broadwell */
#else
        __builtin_prefetch(line, 1);
#endif
    }
}

static void prefetch_slice(const qn_executor *ex, const qn_op_acts *acts, const qn_act_slice *slice)
{
    for (size_t a = 0; a < acts->n; a++) {
        const qn_acts *to = &ex->workspace.acts[acts->at[a]];
        const size_t value = slice->row * to->n_super * QN_SUPER + slice->first, group = value / QN_QUANT_GROUP,
                     n_groups = slice->n / QN_QUANT_GROUP;
        prefetch_to_write(to->lut, group * QN_GROUP_LUT_BYTES, n_groups * QN_GROUP_LUT_BYTES);
        prefetch_to_write(to->lut_lo, group * QN_GROUP_LUT_BYTES, n_groups * QN_GROUP_LUT_BYTES);
        for (size_t layout = 0; layout < QN_ACT_INT8_LAYOUTS && !to->skip_codes; layout++) {
            prefetch_to_write(to->codes[layout], value, slice->n);
            prefetch_to_write(to->codes_lo[layout], value, slice->n);
        }
    }
}

/* The same of tiles: of a prompt, too, all threads have read them. */
static void prefetch_tiles(const qn_executor *ex, const qn_op_acts *acts, const qn_act_slice *slice)
{
    for (size_t a = 0; a < acts->n; a++) {
        const qn_acts *to = &ex->workspace.acts[acts->at[a]];
        for (size_t block = 0; to->block_tiles && block < slice->n / QN_BLOCK; block++) {
            const qn_act_block_tile *tile =
                &to->block_tiles[qn_act_block_at(to, slice->row, slice->first / QN_BLOCK + block)];
            for (size_t half = 0; half < QN_BLOCK / QN_BLOCK_K; half++)
                prefetch_to_write(tile->codes[half][slice->row % QN_TILE], 0, QN_BLOCK_K);
        }
    }
}

qn_act_slice qn_act_slice_at(const qn_executor *ex, const qn_op_acts *acts, size_t index, int thread)
{
    const size_t values = qn_act_slice_width(ex->plan, acts), per_row = slices_per_row(ex, acts),
                 first = index % per_row * values;
    const size_t left = ex->plan->acts[acts->at[0]].width - first;
    const qn_act_slice slice = { .row = index / per_row,
                                 .first = first,
                                 .n = left < values ? left : values,
                                 .values = (float *)qn_thread_scratch(ex, thread) };
    if (ex->step->n_rows <= FEW_ROWS)
        prefetch_slice(ex, acts, &slice);
    else
        prefetch_tiles(ex, acts, &slice);
    return slice;
}

void qn_act_slice_write(const qn_executor *ex, const qn_op_acts *acts, const qn_act_slice *slice)
{
    for (size_t a = 0; a < acts->n; a++) {
        const qn_plan_rotation *rotation = &ex->plan->acts[acts->at[a]].rotation;
        if (rotation->block)
            qn_hadamard_blocks(ex, rotation, false, slice->values, slice->first, slice->n);
        for (size_t i = 0; i < slice->n; i += QN_SUPER)
            ex->kernels->matmul.quantize(&ex->workspace.acts[acts->at[a]], slice->row, (slice->first + i) / QN_SUPER,
                                         slice->values + i, slice->n - i < QN_SUPER ? slice->n - i : QN_SUPER);
    }
}
