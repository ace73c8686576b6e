// The barrier over a cluster of thread blocks (PTX ISA, barrier.cluster).
#ifndef QN_CUDA_KERNELS_CLUSTER_CUH
#define QN_CUDA_KERNELS_CLUSTER_CUH

#include "cuda/kernels/cuda.cuh"

#if __CUDA_ARCH__ >= 900

// Barrier over all threads of the cluster, with release and acquire, also of global memory.
QN_DEVICE void qn_cluster_sync()
{
    asm volatile("barrier.cluster.arrive;\n"
                 "barrier.cluster.wait;" ::
                     : "memory");
}

#endif

#endif
