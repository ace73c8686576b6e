/* Growth, truncation, copies and checkpoints of memories, as operations on their sequences. */
#include "device/memory.h"

#include "base/memory.h"

struct qn_memory_checkpoint {
    qn_sequence sequence; /* zeros: an empty checkpoint */
};

static size_t open_tokens(const qn_sequence *s)
{
    return s->length ? s->length - qn_sequence_shortest(s) + 1 : 0;
}

void qn_memory_on_append(qn_memory *memory, size_t length)
{
    qn_sequence_commit(memory->sequence, length - memory->sequence->length);
}

void qn_memory_truncate(qn_memory *memory, size_t length)
{
    qn_sequence_truncate(memory->sequence, (uint32_t)length);
}

size_t qn_memory_rewind_length(const qn_memory *memory, size_t length)
{
    return qn_sequence_rewind_length(memory->sequence, (uint32_t)length);
}

size_t qn_memory_open_tokens(const qn_memory *memory)
{
    return open_tokens(memory->sequence);
}

qn_status qn_memory_copy(qn_memory *to, const qn_memory *from)
{
    return qn_sequence_assign(to->sequence, from->sequence);
}

/* ---- Checkpoints ---- */

qn_status qn_checkpoint_new(qn_memory_checkpoint **out)
{
    qn_memory_checkpoint *checkpoint;
    *out = NULL;
    QN_TRY(qn_alloc(&checkpoint, 1, sizeof *checkpoint, "checkpoint"));
    *out = checkpoint;
    return QN_OK;
}

void qn_checkpoint_free(qn_memory_checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    qn_sequence_free(&checkpoint->sequence);
    qn_free(checkpoint);
}

void qn_checkpoint_clear(qn_memory_checkpoint *checkpoint)
{
    qn_sequence_free(&checkpoint->sequence);
}

size_t qn_checkpoint_open_tokens(const qn_memory_checkpoint *checkpoint)
{
    return open_tokens(&checkpoint->sequence);
}

qn_status qn_checkpoint_save(qn_memory_checkpoint *checkpoint, const qn_memory *memory)
{
    qn_checkpoint_clear(checkpoint);
    return qn_sequence_fork(memory->sequence, &checkpoint->sequence);
}

qn_status qn_checkpoint_restore(const qn_memory_checkpoint *checkpoint, qn_memory *memory)
{
    return qn_sequence_assign(memory->sequence, &checkpoint->sequence);
}

qn_status qn_checkpoint_copy(qn_memory_checkpoint *to, const qn_memory_checkpoint *from)
{
    qn_checkpoint_clear(to);
    return qn_sequence_fork(&from->sequence, &to->sequence);
}
