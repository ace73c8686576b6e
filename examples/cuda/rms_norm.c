/* A GPU kernel on a stream of the caller: the RMS norm of two rows. It neither allocates nor synchronises.
 *
 *     cc rms_norm.c -o rms_norm $(pkg-config --cflags --libs quern) -I/usr/local/cuda/include -L/usr/local/cuda/lib64
 *     -lcudart ./rms_norm
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <cuda_runtime.h>
#include <quern/cuda.h>

#include <stdio.h>

enum { ROWS = 2, WIDTH = 256 };

static bool failed(cudaError_t error)
{
    if (error)
        fprintf(stderr, "rms_norm: %s\n", cudaGetErrorString(error));
    return error != cudaSuccess;
}

int main(void)
{
    static float x[ROWS * WIDTH], weight[WIDTH], y[ROWS * WIDTH];
    for (size_t i = 0; i < ROWS * WIDTH; i++)
        x[i] = (float)(i % 5) - 2;
    for (size_t i = 0; i < WIDTH; i++)
        weight[i] = 1;

    float *memory = NULL; /* x, weight and y, one after the other */
    cudaStream_t stream;
    if (failed(cudaStreamCreate(&stream)) || failed(cudaMalloc((void **)&memory, sizeof x + sizeof weight + sizeof y)))
        return 1;
    qn_cuda_kernels *kernels = NULL;
    const qn_cuda_view vx = { memory, QN_DTYPE_F32, ROWS * WIDTH, 0 },
                       vw = { memory + ROWS * WIDTH, QN_DTYPE_F32, WIDTH, 0 };
    const qn_cuda_view vy = { memory + ROWS * WIDTH + WIDTH, QN_DTYPE_F32, ROWS * WIDTH, 0 };
    if (failed(cudaMemcpyAsync(vx.data, x, sizeof x, cudaMemcpyHostToDevice, stream)) ||
        failed(cudaMemcpyAsync(vw.data, weight, sizeof weight, cudaMemcpyHostToDevice, stream)))
        return 1;
    if (qn_cuda_kernels_open(&kernels, 0) || qn_cuda_rms_norm(kernels, vx, vw, ROWS, WIDTH, 1e-6F, vy, stream)) {
        fprintf(stderr, "rms_norm: %s\n", qn_error_text());
        return 1;
    }
    if (failed(cudaMemcpyAsync(y, vy.data, sizeof y, cudaMemcpyDeviceToHost, stream)) ||
        failed(cudaStreamSynchronize(stream)))
        return 1;
    double sum = 0;
    for (size_t i = 0; i < WIDTH; i++)
        sum += (double)y[i] * y[i];
    printf("mean square of a row: %.4f\n", sum / WIDTH);
    qn_cuda_kernels_close(kernels);
    cudaFree(memory);
    cudaStreamDestroy(stream);
    return !(sum / WIDTH > 0.999 && sum / WIDTH < 1.001);
}
