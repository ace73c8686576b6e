/* The contents of a sequence on a GPU in the layout of session files (cache/saved_layout.h). The conversion is exact
 * but for v' and keys of an open chunk, which a GPU keeps in fp16, states, which it keeps in two planes of fp16, and
 * inputs of the convolution that it no longer has: zeros in the file. */
#ifndef QN_GPU_SESSION_FILE_H
#define QN_GPU_SESSION_FILE_H

#include "device/device.h"
#include "gpu/format.h"

/* How a backend copies parts of pool items between the device and the host. The functions return when the copy is
 * complete.
 *
 *   read    after all work queued before on the device
 *   write   to items that no queued work accesses */
typedef struct qn_gpu_copies {
    void *context;
    qn_status (*read)(void *context, void *to, uint64_t from, size_t bytes);
    qn_status (*write)(void *context, uint64_t to, const void *from, size_t bytes);
} qn_gpu_copies;

/* qn_gpu_save - implements qn_memory_vtable.serialize for a sequence of this format. */
qn_status qn_gpu_save(const qn_gpu_format *format, const qn_sequence *sequence, const qn_gpu_copies *copies,
                      qn_memory_region_fn on_region, void *context);

/* qn_gpu_load - implements qn_memory_vtable.deserialize. */
qn_status qn_gpu_load(const qn_gpu_format *format, qn_sequence *sequence, const qn_extent *extent,
                      const qn_gpu_copies *copies, qn_memory_region_fn on_region, void *context);

#endif
