// Log probabilities of rows that have them: the sum of all weights and the keys of the most likely tokens, of the
// logits before qn_sample_argmax changes them.
#include "cuda/kernels/sample/sample.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    qn_sample_raw_argmax(const __grid_constant__ qn_sample_args a)
{
    __shared__ qn_sample_params p;
    qn_pdl_trigger();
    load_params(&p, a);
    qn_pdl_wait();
    __syncthreads();
    if (!p.has_logprobs)
        return;
    const row r = row_of(a);
    store_slices(r.state->best, max_key_of_row(r), slices_per_block());
    if (row_thread() == 0) {
        r.state->n_candidates = 0;
        r.state->total = 0;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    qn_sample_top_logprobs(const __grid_constant__ qn_sample_args a)
{
    __shared__ uint64_t keys[QN_SAMPLE_CANDIDATES];
    __shared__ qn_sample_params p;
    qn_pdl_trigger();
    load_params(&p, a);
    qn_pdl_wait();
    __syncthreads();
    if (!p.has_logprobs)
        return;
    const row r = row_of(a);
    const uint32_t slices = slices_per_block();
    const uint64_t own = load_slice(r, slices);
    keys[threadIdx.x] = own;
    const uint64_t largest = block_max_key(own); // its barrier also makes keys visible
    const uint64_t threshold = p.n_top ? kth_slice(keys, own, gridDim.x * slices, p.n_top) : ~0ull;
    const softmax_scale s = { logit_of(largest), 1, p.weight_unit };
    uint64_t sum = 0, all;
    for_each_logit(r, row_thread(), row_threads(), [&](float x, uint32_t at) {
        const uint64_t key = key_of(x, at);
        sum += fixed_point_weight(s, weight_of(s, x));
        if (key >= threshold)
            add_candidate(r, key);
    });
    exclusive_sum(sum, &all);
    if (threadIdx.x == 0)
        atomicAdd((unsigned long long *)&r.state->total, (unsigned long long)all);
    if (!is_last(&r.state->tickets[3]))
        return;
    if (threadIdx.x == 0) {
        r.result->largest = largest;
        r.result->total = __ldcg((const unsigned long long *)&r.state->total);
    }
    load_sorted(keys, r, threshold, largest, p.n_top);
    if (threadIdx.x < p.n_top)
        r.result->top[threadIdx.x] = keys[threadIdx.x];
}
