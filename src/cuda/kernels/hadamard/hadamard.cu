// Block Walsh-Hadamard transform of a tile in registers: strides within a warp's 128 values by shuffles, larger strides
// after one exchange through shared memory. Strides are processed in the order of the reference, so the result has the
// same bits.
#include "cuda/kernels/butterflies.cuh"
#include "cuda/kernels/hadamard/hadamard.h"

// Index in the tile of a thread's i-th value. index_vec4: quads of 4 contiguous values, for 16-byte loads.
// index_strided: values QN_HADAMARD_THREADS apart, consecutive over the threads.
QN_DEVICE uint32_t index_vec4(int i)
{
    return i / 4 * (4 * QN_HADAMARD_THREADS) + threadIdx.x * 4 + i % 4;
}

QN_DEVICE uint32_t index_strided(int i)
{
    return i * QN_HADAMARD_THREADS + threadIdx.x;
}

// Occupancy is limited by threads only: with 10 instead of 16 resident blocks per SM, read bandwidth is 25% lower.
extern "C" __global__ void __launch_bounds__(QN_HADAMARD_THREADS, QN_MAX_THREADS_PER_SM / QN_HADAMARD_THREADS)
    qn_hadamard_tiles(const __grid_constant__ qn_hadamard_tiles_args a)
{
    __shared__ float exchange[QN_HADAMARD_TILE];
    const uint64_t first = (uint64_t)blockIdx.x * QN_HADAMARD_TILE;
    const uint32_t n_here = (uint32_t)(a.n_values - first < QN_HADAMARD_TILE ? a.n_values - first : QN_HADAMARD_TILE);
    const uint32_t first_sign = (uint32_t)(first % a.n_signs);
    const uint64_t here = blockIdx.y * a.stride + first;
    float v[QN_HADAMARD_PER_THREAD];
    uint32_t sign_bits = 0; // bit i: negate value i
    qn_pdl_trigger();
    // Signs are weights: no preceding kernel writes them, so they are loaded before the wait.
    if (a.signs_before) {
#pragma unroll
        for (int i = 0; i < QN_HADAMARD_PER_THREAD; i++)
            sign_bits |= __float_as_uint(a.signs_before[(first_sign + index_vec4(i)) % a.n_signs]) >> 31 << i;
    }
    qn_pdl_wait();
#pragma unroll
    for (int i = 0; i < QN_HADAMARD_PER_THREAD; i += 4) {
        const uint32_t at = index_vec4(i);
        if (at + 4 <= n_here) {
            const float4 four = *(const float4 *)(a.x + here + at);
            v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++)
                v[i + j] = at + j < n_here ? a.x[here + at + j] : 0;
        }
    }
#pragma unroll
    for (int i = 0; i < QN_HADAMARD_PER_THREAD; i++)
        v[i] = __uint_as_float(__float_as_uint(v[i]) ^ sign_bits >> i << 31);
    if (a.n > 1)
        qn_butterflies<1, QN_HADAMARD_PER_THREAD>(v);
    if (a.n > 2)
        qn_butterflies<2, QN_HADAMARD_PER_THREAD>(v);
#pragma unroll
    for (int distance = 1; distance < QN_WARP_SIZE; distance *= 2)
        if (a.n > 4 * distance)
            qn_lane_butterflies<QN_HADAMARD_PER_THREAD>(v, distance);
    // From here on, a thread's sixteen values are 128 apart: the remaining strides of the tile are between its
    // registers.
#pragma unroll
    for (int i = 0; i < QN_HADAMARD_PER_THREAD; i += 4)
        *(float4 *)&exchange[index_vec4(i)] = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < QN_HADAMARD_PER_THREAD; i++)
        v[i] = exchange[index_strided(i)];
    if (a.n > QN_HADAMARD_THREADS)
        qn_butterflies<1, QN_HADAMARD_PER_THREAD>(v);
    if (a.n > 2 * QN_HADAMARD_THREADS)
        qn_butterflies<2, QN_HADAMARD_PER_THREAD>(v);
    if (a.n > 4 * QN_HADAMARD_THREADS)
        qn_butterflies<4, QN_HADAMARD_PER_THREAD>(v);
    if (a.n > 8 * QN_HADAMARD_THREADS)
        qn_butterflies<8, QN_HADAMARD_PER_THREAD>(v);
#pragma unroll
    for (int i = 0; i < QN_HADAMARD_PER_THREAD; i++) {
        const uint32_t at = index_strided(i);
        if (at < n_here)
            a.y[here + at] = v[i] * (a.signs_after ? a.scale * a.signs_after[(first_sign + at) % a.n_signs] : a.scale);
    }
}

// A thread loads one value of each tile of a block.
template <int tiles> QN_DEVICE void cross(const qn_hadamard_cross_args &a)
{
    const uint32_t at = blockIdx.x * QN_HADAMARD_THREADS + threadIdx.x;
    const uint64_t first = (uint64_t)blockIdx.y * a.n;
    const uint32_t first_sign = (uint32_t)(first % a.n_signs);
    float *y = a.y + blockIdx.z * a.stride;
    float v[tiles];
#pragma unroll
    for (int i = 0; i < tiles; i++)
        v[i] = y[first + at + i * QN_HADAMARD_TILE];
    qn_butterflies<1, tiles>(v);
    if (tiles > 2)
        qn_butterflies<2, tiles>(v);
    if (tiles > 4)
        qn_butterflies<4, tiles>(v);
    if (tiles > 8)
        qn_butterflies<8, tiles>(v);
    if (tiles > 16)
        qn_butterflies<16, tiles>(v);
#pragma unroll
    for (int i = 0; i < tiles; i++) {
        const uint32_t index = at + i * QN_HADAMARD_TILE;
        const float factor = a.signs_after ? a.scale * a.signs_after[(first_sign + index) % a.n_signs] : a.scale;
        y[first + index] = v[i] * factor;
    }
}

extern "C" __global__ void __launch_bounds__(QN_HADAMARD_THREADS)
    qn_hadamard_cross(const __grid_constant__ qn_hadamard_cross_args a)
{
    qn_pdl_trigger();
    qn_pdl_wait();
    switch (a.n / QN_HADAMARD_TILE) {
    case 2: cross<2>(a); break;
    case 4: cross<4>(a); break;
    case 8: cross<8>(a); break;
    case 16: cross<16>(a); break;
    case 32: cross<32>(a); break;
    }
}
