// Inner product of 1- and 2-bit weights with activations in bit planes, by binary MMA: mma.m16n8k256 b1 (AND, then
// popcount). For persistent.cu. Defines: QN_BITS, QN_SCALES.
//
// Operand A (16 x 256 bits) is a 512-byte fragment of weight codes exactly as it is stored (matmul_cuda.h): no
// unpacking. The 8 columns of operand B are bit planes of the activations, which are 16-bit integers (15-bit with 2-bit
// weights) with one scale for each 128 columns. An MMA thus yields popcount(codes AND plane) of 16 rows and 8 planes. A
// lane combines its planes as sum over p of 2^p * count(p), the sign plane with a negative weight, and multiplies by
// the scales.
//
// Order of K within a fragment. Lane 4g + t holds four 32-bit words of A: rows g and g+8 of the first halves (16
// columns) of the 32-column groups, then of the second halves. In a word, bit 8i + f*QN_BITS is column 4t + i of that
// half of the fragment's group f. Two bits a weight: the next bit is the code's high bit, which counts double. Operand
// B has at this position the activation's next lower plane, so that column p of B pairs the low bit with plane p and
// the high bit with plane p - 1.
//
// Scales of weights. If a fragment has two scales (PLANE_SCALES 2), four columns of B hold planes in the groups of the
// first scale and zeros elsewhere, the other four the same for the second scale. PLANE_MMAS such MMAs cover all 16
// planes.
#ifndef QN_KERNELS_PERSISTENT_BIT_PLANES_CUH
#define QN_KERNELS_PERSISTENT_BIT_PLANES_CUH

#include "kernels/matmul/gemv.cuh"

enum {
    PLANES = 16,
    K_TILE_ACTS_BYTES = QN_PERSISTENT_K_TILE_BYTES(QN_SCALES),
    PLANE_FRAGMENTS = QN_BITS,                  // fragments (512 bytes) of a tile and K tile
    PLANE_SCALES = QN_SCALES / PLANE_FRAGMENTS, // weight scales of a fragment, 1 or 2
    PLANES_PER_MMA = 8 / PLANE_SCALES,
    PLANE_MMAS = PLANES / PLANES_PER_MMA,
    PLANE_WORDS = PLANE_FRAGMENTS * PLANE_MMAS * 64, // of a K tile: [fragment][MMA][lane][2]
    PLANE_GROUP = 128                                // columns of an activation scale
};

static_assert(PLANE_WORDS * 4 + QN_SCALES * 8 == K_TILE_ACTS_BYTES,
              "planes of a K tile, then for each weight scale the activation scale and the correction for the zero point");

QN_DEVICE uint2 load_shared_8(uint32_t address)
{
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
    return v;
}

// A lane's B fragments of a K tile, and for each A fragment: activation scale times the weight of the lane's lowest
// plane; minus the scaled sum of activations (the codes' zero point is 1, or 1/2 for 1-bit codes), in one lane of each
// row and scale.
struct bit_plane_acts {
    uint2 words[PLANE_FRAGMENTS][PLANE_MMAS];
    float scale[PLANE_FRAGMENTS], minus_sum[PLANE_FRAGMENTS];
};

// Loads them from shared memory. `first` is the lowest of the two planes of the lane.
QN_DEVICE void load_bit_plane_acts(bit_plane_acts &x, uint32_t shared, uint32_t lane)
{
    const uint32_t t = lane % 4;
#pragma unroll
    for (int q = 0; q < PLANE_FRAGMENTS; q++) {
#pragma unroll
        for (int s = 0; s < PLANE_MMAS; s++)
            x.words[q][s] = load_shared_8(shared + ((q * PLANE_MMAS + s) * 32 + lane) * 8);
        const uint32_t scale_index = q * PLANE_SCALES + (PLANE_SCALES == 2 ? t / 2 : 0), first = 2 * t % PLANES_PER_MMA;
        const uint2 info = load_shared_8(shared + PLANE_WORDS * 4 + 8 * scale_index);
        x.scale[q] = __uint_as_float(info.x) * (float)(1 << first);
        x.minus_sum[q] = first == 0 ? __uint_as_float(info.y) : 0;
    }
}

QN_DEVICE void mma_m16n8k256_b1(int c[4], const uint4 &a, uint2 b, const int start[4])
{
    asm("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "r"(start[0]), "r"(start[1]), "r"(start[2]),
          "r"(start[3]));
}

// Adds the products of `count` tiles of a K tile: acc[m] is the lane's part of rows g and g+8 of tile m; the four lanes
// of a row are to be added. codes, scales: shared addresses of the lane's words of the first tile; scales of rows g and
// g+8 are adjacent.
template <int count>
QN_DEVICE void bit_plane_mma(float (*acc)[2], uint32_t codes, uint32_t scales, const bit_plane_acts &x, uint32_t lane)
{
    // 0x4b400000 are the bits of 12582912.0f: read as a float, the accumulator is that plus the integer sum.
    const int zeros[4] = {}, magic[4] = { 0x4b400000, 0, 0x4b400000, 0 };
    const uint32_t t = lane % 4;
    // Weight of the lane's odd plane relative to its even one; -2 if it is the sign plane.
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
            for (int s = 0; s < PLANE_MMAS; s++)
                mma_m16n8k256_b1(c[s], fragment, x.words[q][s], s ? zeros : magic);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int sum = c[PLANE_MMAS - 1][2 * h] + sign_weight * c[PLANE_MMAS - 1][2 * h + 1];
#pragma unroll
                for (int s = PLANE_MMAS - 2; s >= 0; s--)
                    sum = (sum << PLANES_PER_MMA) + (c[s][2 * h] + 2 * c[s][2 * h + 1]);
                const float fragment_dot = fmaf(__int_as_float(sum) - 12582912.0f, x.scale[q], x.minus_sum[q]);
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

// Transposes bits between the four lanes that are 8 apart. They hold the same columns of four 32-column groups, j =
// lane / 8, one byte for each of four columns. Lane j receives, of all four groups, plane j in the low nibble of each
// byte and plane 4 + j in the high nibble.
QN_DEVICE uint32_t gather_planes(uint32_t bytes, uint32_t lane)
{
    uint32_t other = __shfl_xor_sync(QN_FULL_MASK, bytes, 8);
    bytes = lane & 8 ? (other >> 1 & 0x55555555u) | (bytes & 0xaaaaaaaau) : (bytes & 0x55555555u) | (other << 1 & 0xaaaaaaaau);
    other = __shfl_xor_sync(QN_FULL_MASK, bytes, 16);
    return lane & 16 ? (other >> 2 & 0x33333333u) | (bytes & 0xccccccccu) : (bytes & 0x33333333u) | (other << 2 & 0xccccccccu);
}

// Spreads the low nibble of each byte to its even bits.
QN_DEVICE uint32_t spread_nibbles(uint32_t w)
{
    w = (w | w << 2) & 0x33333333u;
    return (w | w << 1) & 0x55555555u;
}

// Quantises 128 columns of a slice from `at` on (a multiple of PLANE_GROUP), four a lane, by a full warp, to the bit
// planes of acts: K tiles of K_TILE_ACTS_BYTES bytes. An infinity or NaN among them makes the scale NaN, and so every
// row's sum.
QN_DEVICE void quantize_bit_planes(uint8_t *acts, uint32_t at, float4 x, uint32_t lane)
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
    const uint32_t j = lane / 8, h = lane / 4 % 2, t = lane % 4, group = at / PLANE_GROUP % 2;
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
    if (lane == 0) {
        float2 *info = (float2 *)(k_tile + PLANE_WORDS * 4) + group * (QN_SCALES / 2);
        const float bit_scale = QN_BITS == 1 ? 2 * scale : scale; // 1-bit codes are 2 code - 1
        info[0] = make_float2(bit_scale, -(scale * (float)first));
        if (QN_SCALES == 4)
            info[1] = make_float2(bit_scale, -(scale * (float)(all - first)));
    }
}

#endif
