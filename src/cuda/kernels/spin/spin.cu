// Waits. The next kernel may begin at once; its PDL wait covers this kernel, and so the kernel before this one.
#include "cuda/kernels/spin/spin.h"

QN_DEVICE uint64_t nanoseconds()
{
    uint64_t time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// The last step of splitmix64: a graph repeats the seed, but not the time.
QN_DEVICE uint32_t random_of(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(x >> 32);
}

extern "C" __global__ void __launch_bounds__(QN_WARP_SIZE) qn_spin(const __grid_constant__ qn_spin_args a)
{
    qn_pdl_trigger();
    qn_pdl_wait();
    if (threadIdx.x)
        return;
    const uint64_t begin = nanoseconds(), length = (uint64_t)random_of(a.seed ^ begin) * a.max_ns >> 32;
    while (nanoseconds() - begin < length)
        __nanosleep(200);
}
