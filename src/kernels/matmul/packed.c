/* Packing matrices, and back; products with them are in the instruction sets' files. */
#include "kernels/matmul/packed.h"

#include <string.h>

/* Where in a block its words are, and its scale (the first two bytes) unless that is in a word. */
struct block_layout {
    size_t bytes, n_words, words_at;
    bool has_scale;
};

static struct block_layout layout_of(const qn_type_info *type)
{
    const size_t bytes = type->block_bytes;
    if (type->type == QN_TYPE_PTQ1_0)
        return (struct block_layout){ .bytes = bytes, .n_words = bytes / 4 };
    return (struct block_layout){ .bytes = bytes, .n_words = (bytes - 2) / 4, .words_at = 2, .has_scale = true };
}

/* Where in the block of a group a row's byte is, and its scale. */
static size_t byte_at(qn_packing packing, size_t row, size_t byte)
{
    return packing == QN_PACKING_WORDS ? (byte / 4 * QN_PACK_ROWS + row) * 4 + byte % 4
                                       : byte * QN_PACK_ROWS + qn_pack_place(row);
}

static size_t scale_at(const struct block_layout *layout, size_t row)
{
    return layout->n_words * 4 * QN_PACK_ROWS + row * 2;
}

static void pack_block(const struct block_layout *layout, qn_packing packing, size_t row, const uint8_t *stored,
                       uint8_t *packed)
{
    const uint8_t *words = stored + layout->words_at;
    const size_t step = packing == QN_PACKING_WORDS ? 4 : 1;
    for (size_t byte = 0; byte < 4 * layout->n_words; byte += step)
        memcpy(packed + byte_at(packing, row, byte), words + byte, step);
    if (layout->has_scale)
        memcpy(packed + scale_at(layout, row), stored, 2);
}

static void unpack_block(const struct block_layout *layout, qn_packing packing, size_t row, const uint8_t *packed,
                         uint8_t *stored)
{
    uint8_t *words = stored + layout->words_at;
    const size_t step = packing == QN_PACKING_WORDS ? 4 : 1;
    for (size_t byte = 0; byte < 4 * layout->n_words; byte += step)
        memcpy(words + byte, packed + byte_at(packing, row, byte), step);
    if (layout->has_scale)
        memcpy(stored, packed + scale_at(layout, row), 2);
}

void qn_matmul_pack(const qn_matrix *weights, qn_packing packing, size_t begin, size_t end, uint8_t *packed)
{
    const struct block_layout layout = layout_of(weights->type);
    for (size_t group = begin; group < end; group++) {
        const uint8_t *rows = weights->data + group * QN_PACK_ROWS * weights->row_bytes;
        uint8_t *out = packed + group * QN_PACK_ROWS * weights->row_bytes;
        for (size_t at = 0; at < weights->row_bytes; at += layout.bytes)
            for (size_t row = 0; row < QN_PACK_ROWS; row++)
                pack_block(&layout, packing, row, rows + row * weights->row_bytes + at, out + at * QN_PACK_ROWS);
    }
}

void qn_matmul_unpack(const qn_matrix *weights, qn_packing packing, size_t group, uint8_t *rows)
{
    const struct block_layout layout = layout_of(weights->type);
    const uint8_t *packed = weights->packed + group * QN_PACK_ROWS * weights->row_bytes;
    for (size_t at = 0; at < weights->row_bytes; at += layout.bytes)
        for (size_t row = 0; row < QN_PACK_ROWS; row++)
            unpack_block(&layout, packing, row, packed + at * QN_PACK_ROWS, rows + row * weights->row_bytes + at);
}
