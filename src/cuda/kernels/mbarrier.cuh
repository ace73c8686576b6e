// mbarriers in shared memory, by their address (PTX ISA, mbarrier).
//
// The memory of an mbarrier has no other use while the kernel runs: PTX allows another use only after mbarrier.inval.
// On a GPU shared by several processes, split-K partials that a GEMM had stored over its mbarriers were replaced by the
// mbarriers' contents.
#ifndef QN_CUDA_KERNELS_MBARRIER_CUH
#define QN_CUDA_KERNELS_MBARRIER_CUH

#include "cuda/kernels/cuda.cuh"

QN_DEVICE void qn_mbarrier_init(uint32_t mbarrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(mbarrier), "r"(arrivals) : "memory");
}

QN_DEVICE void qn_mbarrier_arrive(uint32_t mbarrier)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(mbarrier) : "memory");
}

// Waits for the completion of the phase of this parity.
QN_DEVICE void qn_mbarrier_wait(uint32_t mbarrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
#if __CUDA_ARCH__ >= 900
                 "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
#else
                 "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
#endif
                 "@!done bra again;\n"
                 "}\n" ::"r"(mbarrier),
                 "r"(parity)
                 : "memory");
}

#endif
