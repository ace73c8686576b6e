#extension GL_KHR_memory_scope_semantics : require

/* Workgroups of a launch that write parts of something, of which the last one goes on with all of it. None waits. */
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Counters { uint at[]; };

shared bool is_last;

/* A barrier of the workgroup, whose lanes then see, by way of the counter, what other workgroups have written. barrier()
 * and memoryBarrierBuffer() alone do not order one lane's atomic operation after the writes of the others. */
void barrier_of_device()
{
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeDevice, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                   gl_SemanticsAcquireRelease);
}

/* Returns, in one of n workgroups, whether all of them have come here: what they have written to `coherent` memory is
 * visible. The counter is 0 before and after. */
bool is_last_of(uvec2 arrived, uint counter, uint n)
{
    barrier_of_device();
    if (gl_LocalInvocationIndex == 0) {
        is_last = atomicAdd(Counters(arrived).at[counter], 1, gl_ScopeDevice, gl_StorageSemanticsBuffer,
                            gl_SemanticsAcquireRelease) == n - 1;
        if (is_last)
            Counters(arrived).at[counter] = 0;
    }
    barrier_of_device();
    return is_last;
}
