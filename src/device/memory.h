/* Functions of memories that are the same on all devices: a memory is a sequence of a pool (qn_memory.sequence), and a
 * checkpoint is a fork of it. One thread at a time may use a memory and its checkpoints; the model's lock is not
 * needed. */
#ifndef QN_DEVICE_MEMORY_H
#define QN_DEVICE_MEMORY_H

#include "device/device.h"

/* qn_memory_on_append - ends a step: the memory now has `length` positions, at least the number before the step. */
void qn_memory_on_append(qn_memory *memory, size_t length);

/* qn_memory_rewind_length - returns the greatest length, at most `length`, to which the KV cache can be truncated
 * without computing rows again. */
size_t qn_memory_rewind_length(const qn_memory *memory, size_t length);

/* qn_memory_truncate - drops all positions from `length` on. `length` is a result of qn_memory_rewind_length, or 0:
 * recurrent layers then have their state before the first token. */
void qn_memory_truncate(qn_memory *memory, size_t length);

/* qn_memory_open_tokens - returns the number of lengths to which the recurrent layers can be truncated by dropping rows
 * of the open chunk, including the present length; 0 for an empty memory. */
size_t qn_memory_open_tokens(const qn_memory *memory);

/* qn_memory_copy - copies the contents to another memory with the same parameters. After an error `to` is empty. */
qn_status qn_memory_copy(qn_memory *to, const qn_memory *from);

/* ---- Checkpoints: what a memory with recurrent layers needs to return to a length ---- */

/* Holds references to pool items, which it shares with the memory: it must be freed before the device. */

typedef struct qn_memory_checkpoint qn_memory_checkpoint;

/* qn_checkpoint_new - creates an empty checkpoint. QN_ERR_MEMORY. Free with qn_checkpoint_free, which accepts NULL. */
qn_status qn_checkpoint_new(qn_memory_checkpoint **out);
void qn_checkpoint_free(qn_memory_checkpoint *checkpoint);

/* qn_checkpoint_clear - drops the checkpoint's contents, until the next qn_checkpoint_save. */
void qn_checkpoint_clear(qn_memory_checkpoint *checkpoint);

/* qn_checkpoint_open_tokens - returns qn_memory_open_tokens of the memory that qn_checkpoint_restore will leave. */
size_t qn_checkpoint_open_tokens(const qn_memory_checkpoint *checkpoint);

/* qn_checkpoint_save - replaces the checkpoint by the contents of a memory that is not empty. After an error the
 * checkpoint is empty. */
qn_status qn_checkpoint_save(qn_memory_checkpoint *checkpoint, const qn_memory *memory);

/* qn_checkpoint_restore - replaces the memory's contents by the checkpoint's. After an error the memory is empty. */
qn_status qn_checkpoint_restore(const qn_memory_checkpoint *checkpoint, qn_memory *memory);

/* qn_checkpoint_copy - replaces a checkpoint by a copy of another. After an error `to` is empty. */
qn_status qn_checkpoint_copy(qn_memory_checkpoint *to, const qn_memory_checkpoint *from);

#endif
