/* The backends of this build whose kernels quern-check compares. */
#include "check.h"

#ifdef QN_HAVE_CUDA
#include "cuda.h"
#endif
#ifdef QN_HAVE_VULKAN
#include "vulkan.h"
#endif

const qn_checked_backend *const qn_checked_backends[] = {
#ifdef QN_HAVE_CUDA
    &qn_checked_cuda,
#endif
#ifdef QN_HAVE_VULKAN
    &qn_checked_vulkan,
#endif
    NULL,
};
