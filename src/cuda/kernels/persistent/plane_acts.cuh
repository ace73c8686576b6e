// Activations of a GEMV phase in shared memory, as bit planes: quantisation of 128 columns, and the B fragments of a K
// tile (matmul/bit_planes.cuh). For persistent.cu. Defines: QN_BITS, QN_SCALES.
#ifndef QN_CUDA_KERNELS_PERSISTENT_PLANE_ACTS_CUH
#define QN_CUDA_KERNELS_PERSISTENT_PLANE_ACTS_CUH

#include "cuda/kernels/matmul/bit_planes.cuh"

enum {
    K_TILE_ACTS_BYTES = QN_PERSISTENT_K_TILE_BYTES(QN_SCALES),
    PLANE_WORDS = PLANE_FRAGMENTS * PLANE_MMAS * 64 // of a K tile: [fragment][MMA][lane][2]
};

static_assert(PLANE_WORDS * 4 + QN_SCALES * 8 == K_TILE_ACTS_BYTES,
              "planes of a K tile, then for each weight scale the activation scale and the correction for the zero point");

typedef bit_plane_acts gemv_acts;

// Loads a lane's fragments and scales of a K tile from shared memory.
QN_DEVICE void load_acts(gemv_acts &x, uint32_t shared, uint32_t lane)
{
#pragma unroll
    for (int q = 0; q < PLANE_FRAGMENTS; q++) {
#pragma unroll
        for (int s = 0; s < PLANE_MMAS; s++)
            x.words[q][s] = load_shared_8(shared + ((q * PLANE_MMAS + s) * 32 + lane) * 8);
        load_plane_scales(x, q, shared + PLANE_WORDS * 4, lane);
    }
}

// As bit_plane_mma. Integer sums become floats by an instruction here: the other way takes registers and moves.
template <int count>
QN_DEVICE void acts_mma(float (*acc)[2], uint32_t codes, uint32_t scales, const gemv_acts &x, uint32_t lane)
{
    const int zeros[4] = {};
    const uint32_t t = lane % 4;
    const int sign_weight = 2 * t % PLANES_PER_MMA == PLANES_PER_MMA - 2 ? -2 : 2;
#pragma unroll
    for (int m = 0; m < count; m++)
#pragma unroll
        for (int q = 0; q < PLANE_FRAGMENTS; q++) {
            const uint4 fragment = load_shared_16(codes + m * QN_TILE_CODE_BYTES + q * QN_FRAGMENT_BYTES);
            const uint32_t scale_index = q * PLANE_SCALES + (PLANE_SCALES == 2 ? t / 2 : 0);
            const uint32_t scale = load_shared_4(scales + m * QN_TILE_SCALE_BYTES + scale_index * 2 * QN_TILE_ROWS);
            int c[PLANE_MMAS][4];
#pragma unroll
            for (int s = PLANE_MMAS - 1; s >= 0; s--)
                mma_m16n8k256_b1(c[s], fragment, x.words[q][s], zeros);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int sum = c[PLANE_MMAS - 1][2 * h] + sign_weight * c[PLANE_MMAS - 1][2 * h + 1];
#pragma unroll
                for (int s = PLANE_MMAS - 2; s >= 0; s--)
                    sum = (sum << PLANES_PER_MMA) + (c[s][2 * h] + 2 * c[s][2 * h + 1]);
                const float fragment_dot = fmaf((float)sum, x.scale[q], x.minus_sum[q]);
                acc[m][h] = fmaf(h ? qn_f16_high(scale) : qn_f16_low(scale), fragment_dot, acc[m][h]);
            }
        }
}

// ---- Quantisation of 128 columns to bit planes ----

QN_DEVICE uint32_t abs_bits(float x)
{
    return __float_as_uint(x) & 0x7fffffffu; // ordered as magnitudes; infinity and NaN are largest
}

// Error: at most 1 ulp.
QN_DEVICE float reciprocal(float x)
{
    float y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Quantises 128 columns of a slice from `at` on (a multiple of QN_ACTS_HILO_COLS), four a lane, by a full warp, to the
// bit planes of acts: K tiles of K_TILE_ACTS_BYTES bytes. An infinity or NaN among them makes the scale NaN, and so
// every row's sum.
QN_DEVICE void quantize_acts(uint8_t *acts, uint32_t at, float4 x, uint32_t lane)
{
    const uint32_t lane_amax = max(max(abs_bits(x.x), abs_bits(x.y)), max(abs_bits(x.z), abs_bits(x.w)));
    const uint32_t bits = __reduce_max_sync(QN_FULL_MASK, lane_amax);
    // With 2-bit weights the high code bit needs one more plane, so that activations have one bit less.
    const float amax = __uint_as_float(bits), qmax = QN_BITS == 1 ? 32767 : 16383;
    const bool finite = bits < 0x7f800000u, zero = !finite || amax < 1e-30f;
    const float inv_scale = zero ? 0 : qmax * reciprocal(amax);
    const float scale = finite ? (zero ? 0 : amax * (1.0f / qmax)) : QN_NAN;
    if (!finite)
        x = make_float4(0, 0, 0, 0);
    const int c0 = __float2int_rn(x.x * inv_scale), c1 = __float2int_rn(x.y * inv_scale);
    const int c2 = __float2int_rn(x.z * inv_scale), c3 = __float2int_rn(x.w * inv_scale);
    const int lane_sum = c0 + c1 + (c2 + c3), all = __reduce_add_sync(QN_FULL_MASK, lane_sum);
    const int first = QN_SCALES == 4 ? __reduce_add_sync(QN_FULL_MASK, lane < 16 ? lane_sum : 0) : all;

    // Lane 8j + 4h + t has columns 4t to 4t+3 of half h of 32-column group j.
    const uint32_t j = lane / 8, h = lane / 4 % 2, t = lane % 4, group = at / QN_ACTS_HILO_COLS % 2;
    const uint32_t lower = __byte_perm(c0, c1, 0x5140),
                   upper = __byte_perm(c2, c3, 0x5140); // two low bytes, then two high ones
    const uint32_t low = gather_planes(__byte_perm(lower, upper, 0x5410), lane);
    const uint32_t high = gather_planes(__byte_perm(lower, upper, 0x7632), lane);
    const uint32_t planes[4] = { low & 0x0f0f0f0fu, low >> 4 & 0x0f0f0f0fu, high & 0x0f0f0f0fu, high >> 4 & 0x0f0f0f0fu };
    uint8_t *k_tile = acts + at / QN_TILE_COLS * K_TILE_ACTS_BYTES;
    uint32_t *words = (uint32_t *)k_tile + 2 * t + h;
#pragma unroll
    for (uint32_t p = 0; p < 4; p++) { // plane 4p + j
        if (QN_BITS == 1) {
            words[p * 64 + (4 * group + j) * 8] = planes[p] << 4 * group;
            continue;
        }
        // The next lower plane is in lane j - 1; for j = 0 it is in lane j = 3, from iteration p - 1.
        const uint32_t sent = j == 3 && p ? planes[p ? p - 1 : 0] : planes[p];
        const uint32_t below = __shfl_sync(QN_FULL_MASK, sent, (lane + 24) % 32);
        const uint32_t word = spread_nibbles(planes[p]) | (j || p ? spread_nibbles(below) << 1 : 0);
        uint32_t *group_words = words + group * (PLANE_MMAS * 64);
        if (PLANE_SCALES == 1) { // MMA p/2, column 4*(p%2) + j
            group_words[p / 2 * 64 + (4 * (p % 2) + j) * 8] = word;
        } else {
            group_words[p * 64 + j * 8] = word & 0x0f0f0f0fu;
            group_words[p * 64 + (4 + j) * 8] = word & 0xf0f0f0f0u;
        }
    }
    if (lane == 0)
        store_scale_info((float2 *)(k_tile + PLANE_WORDS * 4) + group * (QN_SCALES / 2), scale, all, first);
}

#endif
