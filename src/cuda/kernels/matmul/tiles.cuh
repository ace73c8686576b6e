// Shared by the matmul kernels: dequantisation of weight fragments to fp16, the unsigned int8 mma, asynchronous copies
// to shared memory, outputs.
#ifndef QN_CUDA_KERNELS_MATMUL_TILES_CUH
#define QN_CUDA_KERNELS_MATMUL_TILES_CUH

#include "cuda/kernels/matmul/matmul.h"
#include "cuda/kernels/mbarrier.cuh"
#include "cuda/kernels/typed.cuh"

// ---- fp16 pairs (f16x2) ----

QN_DEVICE uint32_t f16x2_add(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

QN_DEVICE uint32_t f16x2_mul(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

QN_DEVICE uint32_t f16x2_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

QN_DEVICE uint32_t broadcast_low(uint32_t x)
{
    return __byte_perm(x, x, 0x1010);
}

QN_DEVICE uint32_t broadcast_high(uint32_t x)
{
    return __byte_perm(x, x, 0x3232);
}

// ---- Codes ----

// A lane's scale and offset of a group: row g in the low, row g+8 in the high half. With QN_BITS 16, which has no
// scales, scale is a zero that the compiler cannot prove to be zero: fragments are then copied to registers of their
// own, as for the other types, while the tensor core still reads the previous ones.
struct group_scale {
    uint32_t scale, offset;
};

// Dequantises half k16 of group `group` of a tile to an A fragment of mma.m16n8k16, four words. `fragment`: the lane's
// 16 bytes of the stored fragment that contains the group (with 16 bits, of the fragment of that half). An fp16 value
// with the bits 0x6400 (1024) has the code in its lowest mantissa bits: subtracting 1024 plus the zero point is exact.
template <int bits, bool has_offset>
QN_DEVICE void dequantize_fragment(uint32_t a[4], const uint4 &fragment, int group, int k16, group_scale s)
{
    const uint32_t words[4] = { fragment.x, fragment.y, fragment.z, fragment.w };
    const uint32_t minus_zero = 0xe400e400u + QN_TILE_ZERO(bits) * 0x00010001u; // -1024 minus the zero point
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint32_t w = words[k], scale = k & 1 ? broadcast_high(s.scale) : broadcast_low(s.scale);
        if (bits == 16) { // s.scale is zero
            a[k] = w ^ s.scale;
        } else if (bits == 1) { // the bit flips the sign of minus the scale
            a[k] = ((w << (15 - 8 * k16 - group)) & 0x80008000u) ^ (scale ^ 0x80008000u);
        } else if (bits == 2) {
            const uint32_t code = (w >> (8 * k16 + 2 * (group % 4)) & 0x00030003u) | 0x64006400u;
            a[k] = f16x2_mul(f16x2_add(code, minus_zero), scale);
        } else if (bits == 4) {
            const uint32_t code = (w >> (8 * k16 + 4 * (group % 2)) & 0x000f000fu) | 0x64006400u;
            const uint32_t offset = k & 1 ? broadcast_high(s.offset) : broadcast_low(s.offset);
            a[k] = f16x2_fma(f16x2_add(code, minus_zero), scale, offset);
        } else {
            const uint32_t code = __byte_perm(w, 0x64646464u, k16 ? 0x4341 : 0x4240);
            a[k] = f16x2_mul(f16x2_add(code, minus_zero), scale);
        }
    }
}

// Index of the (first) fragment that contains a group; with 16 bits a group has two.
template <int bits> QN_DEVICE int fragment_of_group(int group)
{
    return bits == 16 ? 2 * group : group * bits / 8;
}

// ---- Tensor cores ----

// d = a b + c, unsigned weights by signed activations.
QN_DEVICE void mma_m16n8k32_u8_s8(int d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, const int c[4])
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%10, %11, %12, %13};"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

// ---- Bulk copies (sm_90 and later): one thread issues, all threads wait on an mbarrier for the bytes ----

#if __CUDA_ARCH__ >= 900

// True in one lane of the warp. With elect.sync the compiler can rely on a single lane executing, and uses its
// addresses directly.
QN_DEVICE bool elect_one()
{
    uint32_t elected;
    asm volatile("{\n"
                 ".reg .pred elected;\n"
                 "elect.sync _|elected, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, elected;\n"
                 "}\n"
                 : "=r"(elected));
    return elected;
}

// Makes initialised mbarriers visible to the bulk copies.
QN_DEVICE void fence_mbarrier_init()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

QN_DEVICE void mbarrier_arrive_expect_tx(uint32_t mbarrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(mbarrier), "r"(bytes) : "memory");
}

// Addresses and bytes are multiples of 16.
QN_DEVICE void cp_async_bulk(uint32_t shared, const void *global, uint32_t bytes, uint32_t mbarrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
                 "l"(global), "r"(bytes), "r"(mbarrier)
                 : "memory");
}

// ---- Clusters ----

QN_DEVICE float4 load_dsmem_float4(uint32_t shared, uint32_t block)
{
    float4 v;
    asm volatile("{\n"
                 ".reg .u32 there;\n"
                 "mapa.shared::cluster.u32 there, %4, %5;\n"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n"
                 "}\n"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(shared), "r"(block)
                 : "memory");
    return v;
}

#endif

// Copies 16 bytes to a shared memory address.
QN_DEVICE void cp_async_16(uint32_t shared, const void *global)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

// Copies `count` of up to `tiles` adjacent tiles of weights of a K tile to shared memory: codes, and after the codes of
// `tiles` tiles, scales. By a full warp, 16 bytes a lane. `offset`: 16 * lane; `add`: the same, or 0 if all addresses
// include it.
template <int tiles, int code_bytes, int scale_bytes>
QN_DEVICE void copy_weights(uint32_t to, const uint8_t *codes, const uint8_t *scales, uint32_t count, uint32_t offset,
                            uint32_t add)
{
#pragma unroll
    for (uint32_t at = 0; at < tiles * code_bytes; at += 16 * QN_WARP_SIZE)
        if (at < count * code_bytes)
            cp_async_16(to + at + add, codes + at + add);
    if constexpr (scale_bytes > 0) {
#pragma unroll
        for (uint32_t at = 0; at < tiles * scale_bytes; at += 16 * QN_WARP_SIZE)
            if (at + offset < count * scale_bytes)
                cp_async_16(to + tiles * code_bytes + at + add, scales + at + add);
    }
}

QN_DEVICE uint4 load_shared_16(uint32_t address)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
    return v;
}

// Loads and stores that another thread may do at the same time.
QN_DEVICE uint4 load_relaxed(const uint4 *at)
{
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at)
                 : "memory");
    return v;
}

QN_DEVICE void store_relaxed(uint4 *at, uint4 v)
{
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

QN_DEVICE uint32_t load_shared_4(uint32_t address)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
    return v;
}

QN_DEVICE float2 load_shared_float2(uint32_t address)
{
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address));
    return v;
}

// ---- Partials of several blocks ----

// Adds 1 and returns the value before. Release and acquire are cumulative: between two barriers of the block they hold
// for all its threads (PTX ISA, "Causality Order").
QN_DEVICE uint32_t arrive(uint32_t *counter)
{
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}

// ---- Outputs ----

// An output in fp16 or bf16; f32 is float.
struct f16_output {
    uint16_t bits;
};

struct bf16_output {
    uint16_t bits;
};

QN_DEVICE float load_output(const float *at)
{
    return *at;
}

QN_DEVICE float load_output(const f16_output *at)
{
    return qn_f16_to_f32(at->bits);
}

QN_DEVICE float load_output(const bf16_output *at)
{
    return qn_bf16_to_f32(at->bits);
}

QN_DEVICE void store_output(float *at, float x)
{
    *at = x;
}

QN_DEVICE void store_output(f16_output *at, float x)
{
    at->bits = qn_f32_to_f16(x);
}

QN_DEVICE void store_output(bf16_output *at, float x)
{
    at->bits = qn_f32_to_bf16(x);
}

// Calls function<type> for a qn_dtype of outputs. The branch is uniform, and outside of all loops over outputs: the
// code of f32 is that of a kernel without other types.
#define WITH_OUTPUT_TYPE(dtype, function, ...)                                                                                 \
    do {                                                                                                                       \
        if ((dtype) == QN_TYPED_F32)                                                                                           \
            function<float>(__VA_ARGS__);                                                                                      \
        else if ((dtype) == QN_TYPED_F16)                                                                                      \
            function<f16_output>(__VA_ARGS__);                                                                                 \
        else                                                                                                                   \
            function<bf16_output>(__VA_ARGS__);                                                                                \
    } while (0)

// Output of a row of a tile: the address of its element of token 0 (null for rows beyond the matrix), and the stride
// between tokens.
template <class type> struct output_row {
    type *at;
    uint64_t stride;
    bool add;
};

template <class type, class args> QN_DEVICE output_row<type> find_output_row(const args &a, uint32_t tile, uint32_t row)
{
    uint32_t k = 0;
#pragma unroll
    for (uint32_t i = 1; i < QN_MATMUL_OUTS; i++)
        if (i < a.n_outs && tile >= a.outs[i].first_tile)
            k = i;
    const uint32_t local_row = (tile - a.outs[k].first_tile) * QN_TILE_ROWS + row;
    output_row<type> out;
    out.at = local_row < a.outs[k].n_rows ? (type *)a.outs[k].data + local_row : nullptr;
    out.stride = a.outs[k].stride;
    out.add = a.outs[k].accumulate;
    return out;
}

// Stores a token's element of a row, or adds it.
template <class type, class args>
QN_DEVICE void store_value(const args &a, const output_row<type> &out, uint32_t token, float value)
{
    if (token < a.n_tokens) {
        type *at = out.at + token * out.stride;
        store_output(at, out.add ? load_output(at) + value : value);
    }
}

#endif
