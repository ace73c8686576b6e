/* Session files of version 3 that were written on a GPU, whose layout was another than the CPU's. `kv` of their header ends
 * with " cuda". What follows the tokens, for a sequence of n tokens:
 *
 *   attention    for each attention layer, each [n_kv_heads]: keys, values [n][head_dim] f16. In a cache of AURA codes: keys,
 *                values
 *                [c][row of the packed stream], their scales [c] f32 of the positions from 64 on in complete pages, c of them;
 *                keys,
 *                values [min(n, 64)][head_dim] f16 in the rotated basis of page 0; the same of the open page, if that is not
 *                page 0: [n % 64]; if page 0 is complete, the mean [head_dim] f32 of its keys
 *   recurrent    for each recurrent layer: S after the last token [n_v_heads][head_v][head_k] f32, the inputs of the
 *                convolution
 *                [taps][width] f32, of position p in row p % taps; zeros up to a multiple of 256 bytes
 *
 * S after the last token becomes the state at the last multiple of 64, with an open chunk of rows that change nothing: v' and
 * keys are zeros, decays 1. Below 64 tokens there is no such multiple: the session's tokens are evaluated again. */
#ifndef QN_ENGINE_STATE_VERSION3_H
#define QN_ENGINE_STATE_VERSION3_H

#include "engine/internal.h"

/* The end of `kv` in the header. */
#define QN_STATE_GPU_LAYOUT " cuda"

/* qn_state_version3_extent - the extent of a session restored from such a file; of length 0 if the tokens must be evaluated
 * again. */
qn_extent qn_state_version3_extent(const qn_session *session, uint32_t length);

/* qn_state_version3_bytes - bytes of the contents of `length` tokens in such a file. */
qn_status qn_state_version3_bytes(const qn_session *session, uint32_t length, uint64_t *bytes);

/* qn_state_version3_read - fill the memory of an empty session with the contents of such a file, whose bytes `read` gives in
 * their order. The memory then has the extent of qn_state_version3_extent. */
qn_status qn_state_version3_read(qn_session *session, uint32_t length, qn_memory_region_fn read, void *context);

#endif
