/* Packed matrices: 64 rows side by side, so that one vector holds the same place of many rows.
 *
 * For types whose block is an f16 scale d and whole 32-bit words of codes (Q1_0: 4 words, Q2_0: 4, PQ2_0: 8), and for PTQ1_0,
 * whose block is seven words, d in the upper half of the last. Rows come in groups of QN_PANEL_ROWS; a group holds its blocks
 * one after another, and a block as many bytes as its 64 rows took before:
 *
 *   WORDS   [words][64 rows] words, then [64 rows] d unless it is in a word
 *   BYTES   [words][4 bytes of the word][64 places] bytes, then [64 rows] d; row r is at place qn_panel_slot(r), which is where
 *           widening interleaved bytes, even and odd lanes apart, leaves rows in their order
 *
 * Rows beyond the last whole group are not packed.
 *
 * 1-bit codes are used four at a time as an index into tables of sums of activations, QN_GROUP_LUT_BYTES bytes for a run of 32:
 * entry n of a table for four activation codes is the sum of those whose bit is set in n, -508 to 508, in two bytes: its lowest
 * five bits, and what is above them, so that eight of the former (at most 248) and of the latter can be added in bytes. That
 * look-up replaces four multiply-adds: Wei et al., T-MAC: CPU Renaissance via Table Lookup for Low-Bit LLM Deployment (2024).
 */
#ifndef QN_KERNELS_MATMUL_PACKED_H
#define QN_KERNELS_MATMUL_PACKED_H

#include "kernels/matmul/matmul.h"

/* Bytes of a row of n_cols that is brought back for tiles, at most. */
#define QN_UNPACKED_ROW_BYTES(n_cols) ((n_cols) / 4)

enum { QN_PANEL_ROWS = 64, QN_GROUP_LUT_BYTES = QN_QUANT_GROUP / 4 * 2 * 16, QN_PANEL_TOKENS = 4 };

/* qn_panel_slot - the place of row r (0 to 63) in BYTES. */
static inline size_t qn_panel_slot(size_t r)
{
    const size_t q = r / 16, row_in_16 = r % 16;
    return row_in_16 / 4 * 16 + q / 2 * 8 + row_in_16 % 4 * 2 + q % 2;
}

/* qn_matmul_pack - groups [begin, end) of a matrix's rows to where they belong in `packed`, which has room for
 * n_rows / QN_PANEL_ROWS groups of QN_PANEL_ROWS * row_bytes. Threads: safe on distinct groups. */
void qn_matmul_pack(const qn_matrix *weights, qn_packing packing, size_t begin, size_t end, uint8_t *packed);

/* qn_matmul_unpack - one group of a packed matrix as its rows were stored: [QN_PANEL_ROWS, row_bytes]. */
void qn_matmul_unpack(const qn_matrix *weights, qn_packing packing, size_t panel, uint8_t *rows);

#endif
