/* Places the arrays of a step's inputs one after the other. */
#include "gpu/inputs.h"

#include "base/memory.h"

enum { ALIGN = 16 };

static void add(size_t *used, size_t count, size_t size, size_t *at)
{
    *at = *used;
    *used = qn_round_up(*used + count * size, ALIGN);
}

qn_gpu_inputs qn_gpu_inputs_of(size_t n_rows, size_t n_pieces, size_t n_logits)
{
    qn_gpu_inputs in = { 0 };
    add(&in.bytes, n_pieces, sizeof(uint64_t), &in.kv_tables);
    add(&in.bytes, n_pieces, sizeof(uint64_t), &in.f16_tables);
    add(&in.bytes, n_pieces, sizeof(uint32_t), &in.state_from);
    add(&in.bytes, n_pieces, sizeof(uint32_t), &in.state_to);
    add(&in.bytes, n_pieces, sizeof(uint32_t), &in.open_chunks);
    add(&in.bytes, n_pieces, sizeof(uint32_t), &in.state_positions);
    add(&in.bytes, n_pieces + 1, sizeof(uint32_t), &in.cu_seqlens);
    add(&in.bytes, n_pieces, sizeof(uint32_t), &in.first_positions);
    add(&in.bytes, n_rows, sizeof(uint32_t), &in.tokens);
    add(&in.bytes, n_rows, sizeof(uint32_t), &in.sources);
    add(&in.bytes, n_rows, sizeof(uint32_t), &in.positions);
    add(&in.bytes, n_rows, sizeof(uint32_t), &in.sequences);
    add(&in.bytes, n_logits, sizeof(uint32_t), &in.logit_rows);
    in.sampling = in.bytes;
    return in;
}
