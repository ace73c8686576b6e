// Loads and stores of fp32, fp16 or bf16 values, and of rows of them between memory and a warp's registers, in the register
// layout of kernels/row.cuh. `at` is an index in values, of a row's first.
#ifndef QN_KERNELS_TYPED_ROWS_CUH
#define QN_KERNELS_TYPED_ROWS_CUH

#include "kernels/row.cuh"

// Values of qn_dtype; any other value is bf16.
#define DTYPE_F32 0u
#define DTYPE_F16 1u

QN_DEVICE float read_value(const uint8_t *rows, uint64_t at, uint32_t dtype)
{
    return dtype == DTYPE_F32   ? ((const float *)rows)[at]
           : dtype == DTYPE_F16 ? qn_f16_to_f32(((const uint16_t *)rows)[at])
                                : qn_bf16_to_f32(((const uint16_t *)rows)[at]);
}

QN_DEVICE void write_value(uint8_t *rows, uint64_t at, uint32_t dtype, float x)
{
    if (dtype == DTYPE_F32)
        ((float *)rows)[at] = x;
    else
        ((uint16_t *)rows)[at] = dtype == DTYPE_F16 ? qn_f32_to_f16(x) : qn_f32_to_bf16(x);
}

template <int dim>
QN_DEVICE void read_row(float x[QN_LANE_VALUES(dim)], const uint8_t *rows, uint64_t at, uint32_t dtype, int lane)
{
#pragma unroll
    for (int i = 0; i < QN_LANE_VALUES(dim); i++)
        x[i] = i * QN_WARP_SIZE + lane < dim ? read_value(rows, at + i * QN_WARP_SIZE + lane, dtype) : 0;
}

template <int dim>
QN_DEVICE void write_row(uint8_t *rows, uint64_t at, uint32_t dtype, const float x[QN_LANE_VALUES(dim)], int lane)
{
#pragma unroll
    for (int i = 0; i < QN_LANE_VALUES(dim); i++)
        if (i * QN_WARP_SIZE + lane < dim)
            write_value(rows, at + i * QN_WARP_SIZE + lane, dtype, x[i]);
}

#endif
