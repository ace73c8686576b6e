// Loads and stores of fp32, fp16 or bf16 values, and of rows of them between memory and a warp's registers, in the
// register layout of cuda/kernels/row.cuh. `at` is the index of a row's first value.
#ifndef QN_CUDA_KERNELS_TYPED_ROWS_CUH
#define QN_CUDA_KERNELS_TYPED_ROWS_CUH

#include "cuda/kernels/row.cuh"
#include "cuda/kernels/typed.cuh"

template <int dim>
QN_DEVICE void read_row(float x[QN_LANE_VALUES(dim)], const uint8_t *rows, uint64_t at, uint32_t dtype, int lane)
{
#pragma unroll
    for (int i = 0; i < QN_LANE_VALUES(dim); i++)
        x[i] = i * QN_WARP_SIZE + lane < dim ? qn_load_typed(rows, at + i * QN_WARP_SIZE + lane, dtype) : 0;
}

template <int dim>
QN_DEVICE void write_row(uint8_t *rows, uint64_t at, uint32_t dtype, const float x[QN_LANE_VALUES(dim)], int lane)
{
#pragma unroll
    for (int i = 0; i < QN_LANE_VALUES(dim); i++)
        if (i * QN_WARP_SIZE + lane < dim)
            qn_store_typed(rows, at + i * QN_WARP_SIZE + lane, dtype, x[i]);
}

#endif
