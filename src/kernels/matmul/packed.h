/* Packed matrices: panels of 64 interleaved rows, so that one vector holds the same word (or byte) of many rows.
 *
 * Types that can be packed: those with a block of an fp16 scale d and 32-bit words of codes (Q1_0: 4 words, Q2_0: 4,
 * PQ2_0: 8), and PTQ1_0, whose block is seven words with d in the upper half of the last. A matrix is [panels][blocks
 * of a row], and a block of a panel has exactly the bytes of its 64 stored blocks:
 *
 *   QN_PACKING_WORDS   [words][64 rows] 32-bit words, then [64 rows] d unless it is in a word
 *   QN_PACKING_BYTES   [words][4 bytes of the word][64 slots] bytes, then [64 rows] d. Row r is in slot
 *                      qn_panel_slot(r), so that widening interleaved bytes, even and odd lanes separately, gives rows
 *                      in ascending order
 *
 * Rows after the last full panel are not packed.
 *
 * Q1_0 is computed by table look-up: four 1-bit codes are an index into a table of the 16 subset sums of four
 * activation codes, which replaces four multiply-adds (Wei et al., T-MAC: CPU Renaissance via Table Lookup for Low-Bit
 * LLM Deployment, 2024). Entry n is the sum of the codes whose bit is set in n, -508 to 508, split into two bytes: the
 * low five bits, and the rest. Eight low or eight high parts (the low ones at most 248) can then be added in bytes. A
 * group of 32 has eight tables, QN_GROUP_LUT_BYTES bytes. */
#ifndef QN_KERNELS_MATMUL_PACKED_H
#define QN_KERNELS_MATMUL_PACKED_H

#include "kernels/matmul/matmul.h"

/* Upper bound of the bytes of a packed row that is unpacked for a GEMM: Q2_0's. */
#define QN_UNPACKED_ROW_BYTES(n_cols) ((n_cols) / QN_Q2_0_WEIGHTS * QN_Q2_0_BYTES)

enum { QN_PANEL_ROWS = 64, QN_GROUP_LUT_BYTES = QN_QUANT_GROUP / 4 * 2 * 16, QN_PANEL_TOKENS = 4 };

/* qn_panel_slot - returns the slot of row r (0 to 63) in QN_PACKING_BYTES. */
static inline size_t qn_panel_slot(size_t r)
{
    const size_t q = r / 16, row_in_16 = r % 16;
    return row_in_16 / 4 * 16 + q / 2 * 8 + row_in_16 % 4 * 2 + q % 2;
}

/* qn_matmul_pack - packs panels [begin, end) of a matrix's rows into `packed`, the start of the whole packed matrix:
 * n_rows / QN_PANEL_ROWS panels of QN_PANEL_ROWS * row_bytes. Threads: safe on distinct panels. */
void qn_matmul_pack(const qn_matrix *weights, qn_packing packing, size_t begin, size_t end, uint8_t *packed);

/* qn_matmul_unpack - unpacks one panel of a packed matrix to the stored layout: rows [QN_PANEL_ROWS, row_bytes]. */
void qn_matmul_unpack(const qn_packed_matrix *weights, qn_packing packing, size_t panel, uint8_t *rows);

#endif
