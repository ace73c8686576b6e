// Eight elements at a time of arrays whose type is known at run time: 16 bytes of fp16 and bf16, 32 of f32.
#ifndef QN_CUDA_KERNELS_VECTORS_CUH
#define QN_CUDA_KERNELS_VECTORS_CUH

#include "cuda/kernels/sigmoid.cuh"
#include "cuda/kernels/typed.cuh"

enum { QN_VECTOR = 8 };

// Eight elements as they are in memory; `high` of f32 only.
struct qn_raw_vector {
    uint4 low, high;
};

// Elements at to at + 7 of `from`; element `at` is at a multiple of 16 bytes. Nothing here uses the loaded values, so
// that several of these loads are in flight together.
QN_DEVICE void qn_load_raw(qn_raw_vector &raw, const void *from, uint64_t at, uint32_t dtype)
{
    const uint4 *p = (const uint4 *)((const uint8_t *)from + (at << (dtype == QN_TYPED_F32 ? 2 : 1)));
    raw.low = p[0];
    if (dtype == QN_TYPED_F32)
        raw.high = p[1];
}

QN_DEVICE void qn_unpack_raw(float x[QN_VECTOR], const qn_raw_vector &raw, uint32_t dtype)
{
    const uint32_t words[QN_VECTOR] = { raw.low.x,  raw.low.y,  raw.low.z,  raw.low.w,
                                        raw.high.x, raw.high.y, raw.high.z, raw.high.w };
    if (dtype == QN_TYPED_F32) {
#pragma unroll
        for (int i = 0; i < QN_VECTOR; i++)
            x[i] = __uint_as_float(words[i]);
        return;
    }
#pragma unroll
    for (int i = 0; i < QN_VECTOR / 2; i++) {
        x[2 * i] = dtype == QN_TYPED_F16 ? qn_f16_low(words[i]) : __uint_as_float(words[i] << 16);
        x[2 * i + 1] = dtype == QN_TYPED_F16 ? qn_f16_high(words[i]) : __uint_as_float(words[i] & 0xffff0000u);
    }
}

// Elements at to at + 7 of `from`. Those from `count` on are not read, and are 0. is_aligned: element `at` is at a
// multiple of 16 bytes.
QN_DEVICE void qn_load_vector(float x[QN_VECTOR], const void *from, uint64_t at, uint32_t dtype, uint32_t count,
                              bool is_aligned)
{
    if (is_aligned && count >= QN_VECTOR) {
        qn_raw_vector raw = {};
        qn_load_raw(raw, from, at, dtype);
        qn_unpack_raw(x, raw, dtype);
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < QN_VECTOR; i++)
        x[i] = i < count ? qn_load_typed(from, at + i, dtype) : 0;
}

// The same, stored and rounded to nearest even; elements from `count` on are not written.
QN_DEVICE void qn_store_vector(void *to, uint64_t at, uint32_t dtype, uint32_t count, bool is_aligned, const float x[QN_VECTOR])
{
    if (!is_aligned || count < QN_VECTOR) {
#pragma unroll
        for (uint32_t i = 0; i < QN_VECTOR; i++)
            if (i < count)
                qn_store_typed(to, at + i, dtype, x[i]);
        return;
    }
    if (dtype == QN_TYPED_F32) {
        float4 *f32 = (float4 *)((float *)to + at);
        f32[0] = make_float4(x[0], x[1], x[2], x[3]);
        f32[1] = make_float4(x[4], x[5], x[6], x[7]);
        return;
    }
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        words[i] = dtype == QN_TYPED_F16 ? qn_f32_to_f16x2(x[2 * i], x[2 * i + 1]) : qn_f32_to_bf16x2(x[2 * i], x[2 * i + 1]);
    *(uint4 *)((uint16_t *)to + at) = make_uint4(words[0], words[1], words[2], words[3]);
}

// SiLU for a result of this type: the error of the fast form, a few ulp of float32, disappears when it is rounded to 16
// bits.
QN_DEVICE float qn_silu_typed(float x, uint32_t dtype)
{
    return dtype == QN_TYPED_F32 ? qn_silu(x) : qn_silu_fast(x);
}

#endif
