/* No nvcc: on Windows it needs Microsoft's compiler, and NVRTC compiles the same kernels without one. */
#include "cuda/runtime/compile.h"

#include <stdlib.h>

qn_status qn_nvcc_find(char **path)
{
    const char *named = getenv("QN_NVCC");
    *path = NULL;
    return !named || !*named ? QN_OK
                             : qn_fail(QN_ERR_INVALID, "QN_NVCC: '%s' is not used: on Windows NVRTC compiles", named);
}

qn_status qn_nvcc_compile(const char *nvcc, unsigned seconds, const qn_gpu_unit *unit, void **cubin, size_t *bytes,
                          char compiler[QN_COMPILER_MAX])
{
    (void)seconds, (void)unit, (void)bytes, (void)compiler;
    *cubin = NULL;
    return qn_fail(QN_ERR_UNSUPPORTED, "%s: nvcc is not run on Windows", nvcc);
}
