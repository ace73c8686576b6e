/* Rewinding, copies and checkpoints of memories, as operations on their sequences. */
#include "device/sequence_memory.h"

#include "base/memory.h"
#include "cache/sequence.h"

struct qn_memory_checkpoint {
    qn_sequence sequence; /* zeros: none */
};

static size_t open_tokens(const qn_sequence *s)
{
    return s->length ? s->length - qn_sequence_shortest(s) + 1 : 0;
}

size_t qn_memory_rewind_length(const qn_memory *memory, size_t length)
{
    return qn_sequence_rewind_length(memory->sequence, (uint32_t)length);
}

size_t qn_memory_open_tokens(const qn_memory *memory)
{
    return open_tokens(memory->sequence);
}

/* Truncation to the present length lets the device see that the sequence has changed. */
static qn_status assign(qn_memory *to, const qn_sequence *from)
{
    const qn_status status = qn_sequence_assign(to->sequence, from);
    to->vtable->truncate(to, to->sequence->length);
    return status;
}

qn_status qn_memory_copy(qn_memory *to, const qn_memory *from)
{
    return assign(to, from->sequence);
}

/* ---- Checkpoints ---- */

qn_status qn_checkpoint_new(const qn_memory *memory, qn_memory_checkpoint **out)
{
    qn_memory_checkpoint *checkpoint;
    (void)memory;
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
    return assign(memory, &checkpoint->sequence);
}

qn_status qn_checkpoint_copy(qn_memory_checkpoint *to, const qn_memory_checkpoint *from)
{
    qn_checkpoint_clear(to);
    return qn_sequence_fork(&from->sequence, &to->sequence);
}
