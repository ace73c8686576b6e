/* What memories do on every device alike, because a memory is a sequence of a pool (qn_memory.sequence), and a
 * checkpoint is a fork of it. */
#ifndef QN_DEVICE_MEMORY_H
#define QN_DEVICE_MEMORY_H

#include "device/device.h"

/* qn_memory_on_append - the memory now holds `length` positions: those before the step, or more. */
void qn_memory_on_append(qn_memory *memory, size_t length);

/* qn_memory_rewind_length - the greatest length, at most `length`, to which the KV cache can be truncated without
 * computing anything again. qn_memory_truncate - set the length to a result of it, or to 0: recurrent layers then have
 * their state before the first token. */
size_t qn_memory_rewind_length(const qn_memory *memory, size_t length);
void qn_memory_truncate(qn_memory *memory, size_t length);

/* qn_memory_open_tokens - with recurrent layers, the number of lengths that the memory can be truncated to by dropping
 * rows of the open chunk, its length included; 0 for an empty one. */
size_t qn_memory_open_tokens(const qn_memory *memory);

/* qn_memory_copy - copy the contents to another memory with the same parameters. After an error `to` is empty. */
qn_status qn_memory_copy(qn_memory *to, const qn_memory *from);

/* ---- Checkpoints: what a memory with recurrent layers needs to return to a length ---- */

typedef struct qn_memory_checkpoint qn_memory_checkpoint;

/* qn_checkpoint_new - without contents. Free with qn_checkpoint_free, which accepts NULL.
 *
 *   save         of a memory that is not empty
 *   restore      the memory has these tokens again. After an error it is empty
 *   open_tokens  qn_memory_open_tokens of the memory that `restore` leaves
 *   clear        gives back what is not kept for reuse, until the next `save` */
qn_status qn_checkpoint_new(qn_memory_checkpoint **out);
void qn_checkpoint_free(qn_memory_checkpoint *checkpoint);
void qn_checkpoint_clear(qn_memory_checkpoint *checkpoint);
size_t qn_checkpoint_open_tokens(const qn_memory_checkpoint *checkpoint);
qn_status qn_checkpoint_save(qn_memory_checkpoint *checkpoint, const qn_memory *memory);
qn_status qn_checkpoint_restore(const qn_memory_checkpoint *checkpoint, qn_memory *memory);
qn_status qn_checkpoint_copy(qn_memory_checkpoint *to, const qn_memory_checkpoint *from);

#endif
