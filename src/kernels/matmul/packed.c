/* Packing matrices; products with them are in the instruction sets' files. */
#include "kernels/matmul/packed.h"

#include <string.h>

static void pack_block(const uint8_t *block, size_t n_words, qn_packing packing, size_t row, uint8_t *out)
{
    const uint8_t *codes = block + 2;
    for (size_t word = 0; word < n_words; word++)
        if (packing == QN_PACKING_WORDS)
            memcpy(out + (word * QN_PACK_ROWS + row) * 4, codes + 4 * word, 4);
        else
            for (size_t byte = 0; byte < 4; byte++)
                out[(word * 4 + byte) * QN_PACK_ROWS + qn_pack_place(row)] = codes[4 * word + byte];
    memcpy(out + n_words * 4 * QN_PACK_ROWS + row * 2, block, 2);
}

void qn_matmul_pack(const qn_matrix *weights, qn_packing packing, size_t begin, size_t end, uint8_t *packed)
{
    const size_t block_bytes = weights->type->block_bytes, n_blocks = weights->row_bytes / block_bytes;
    for (size_t group = begin; group < end; group++) {
        const uint8_t *rows = weights->data + group * QN_PACK_ROWS * weights->row_bytes;
        uint8_t *out = packed + group * QN_PACK_ROWS * weights->row_bytes;
        for (size_t block = 0; block < n_blocks; block++)
            for (size_t row = 0; row < QN_PACK_ROWS; row++)
                pack_block(rows + row * weights->row_bytes + block * block_bytes, (block_bytes - 2) / 4, packing, row,
                           out + block * QN_PACK_ROWS * block_bytes);
    }
}
