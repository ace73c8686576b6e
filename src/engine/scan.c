/* Scanning a model's weights for scales and values that are infinite or NaN. */
#include "engine/internal.h"

#include "quant/quant.h"

/* Bytes scanned between two calls of on_progress, rounded down to full blocks. */
enum { PIECE_BYTES = 64 << 20 };

struct scan {
    const uint8_t *data;
    const qn_type_info *type;
    atomic_size_t first_nonfinite;
};

static void scan_blocks(void *context, size_t begin, size_t end, int thread)
{
    struct scan *scan = context;
    (void)thread;
    const size_t nonfinite = scan->type->find_nonfinite(scan->data + begin * scan->type->block_bytes, end - begin);
    if (nonfinite == end - begin)
        return;
    size_t known = atomic_load(&scan->first_nonfinite);
    while (begin + nonfinite < known &&
           !atomic_compare_exchange_weak(&scan->first_nonfinite, &known, begin + nonfinite))
        ;
}

qn_status qn_scan_tensor(const qn_gguf *file, const qn_gguf_tensor *tensor, qn_team *team, qn_progress_fn on_progress,
                         void *user, size_t *done, size_t total)
{
    const qn_type_info *type = qn_type_find(tensor->type);
    const size_t n_blocks = tensor->bytes / type->block_bytes;
    size_t piece = PIECE_BYTES / type->block_bytes;
    for (size_t begin = 0; begin < n_blocks; begin += piece) {
        piece = n_blocks - begin < piece ? n_blocks - begin : piece;
        struct scan scan = { .data = tensor->data + begin * type->block_bytes, .type = type };
        atomic_init(&scan.first_nonfinite, piece);
        qn_team_divide(team, piece, 64, scan_blocks, &scan);
        const size_t nonfinite = atomic_load(&scan.first_nonfinite);
        if (nonfinite != piece)
            return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.*s': block %zu of %zu contains an infinity or NaN",
                           qn_gguf_tensor_path(file, tensor),
                           (int)(tensor->name.length < 64 ? tensor->name.length : 64), tensor->name.data,
                           begin + nonfinite, n_blocks);
        *done += piece * type->block_bytes;
        if (on_progress && !on_progress(user, *done, total))
            return qn_fail(QN_ERR_CANCELLED, "%s: loading was cancelled", qn_gguf_path(file));
    }
    return QN_OK;
}
