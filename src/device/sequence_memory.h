/* The functions of qn_memory_vtable that are the same on every device, because a memory is a sequence of a pool
 * (qn_memory.sequence), and a checkpoint is a fork of it. */
#ifndef QN_DEVICE_SEQUENCE_MEMORY_H
#define QN_DEVICE_SEQUENCE_MEMORY_H

#include "device/device.h"

size_t qn_memory_rewind_length(const qn_memory *memory, size_t length);
size_t qn_memory_open_tokens(const qn_memory *memory);
qn_status qn_memory_copy(qn_memory *to, const qn_memory *from);

qn_status qn_checkpoint_new(const qn_memory *memory, qn_memory_checkpoint **out);
void qn_checkpoint_free(qn_memory_checkpoint *checkpoint);
void qn_checkpoint_clear(qn_memory_checkpoint *checkpoint);
size_t qn_checkpoint_open_tokens(const qn_memory_checkpoint *checkpoint);
qn_status qn_checkpoint_save(qn_memory_checkpoint *checkpoint, const qn_memory *memory);
qn_status qn_checkpoint_restore(const qn_memory_checkpoint *checkpoint, qn_memory *memory);
qn_status qn_checkpoint_copy(qn_memory_checkpoint *to, const qn_memory_checkpoint *from);

#endif
