/* Workgroups of a launch that write parts of something, of which the last one goes on with all of it. None waits. */
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Counters { uint at[]; };

shared bool is_last;

/* Returns, in one of n workgroups, whether all of them have come here: what they have written to `coherent` memory is
 * visible. The counter is 0 before and after. */
bool is_last_of(uvec2 arrived, uint counter, uint n)
{
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationIndex == 0) {
        is_last = atomicAdd(Counters(arrived).at[counter], 1) == n - 1;
        if (is_last)
            Counters(arrived).at[counter] = 0;
    }
    barrier();
    memoryBarrierBuffer();
    return is_last;
}
