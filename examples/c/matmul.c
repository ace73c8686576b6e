/* A kernel by itself: weights become 1 bit each, and a matrix of activations is multiplied by them, without a model.
 *
 *     cc matmul.c -o matmul $(pkg-config --cflags --libs quern) -lm
 *     ./matmul
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <quern/kernels.h>

#include <math.h>
#include <stdio.h>

enum { ROWS = 64, COLUMNS = 256, TOKENS = 3 };

int main(void)
{
    static float weights[ROWS * COLUMNS], acts[TOKENS * COLUMNS], out[TOKENS * ROWS];
    static unsigned char packed[ROWS * COLUMNS]; /* 1 bit a weight and a scale for 128: a ninth of it is used */
    for (size_t i = 0; i < ROWS * COLUMNS; i++)
        weights[i] = (i * 2654435761U >> 13) & 1 ? 0.5F : -0.5F; /* of one magnitude: 1 bit holds them without loss */
    for (size_t i = 0; i < TOKENS * COLUMNS; i++)
        acts[i] = sinf((float)i);

    const qn_view w = { weights, QN_DTYPE_F32, ROWS * COLUMNS }, q = { packed, QN_DTYPE_Q1_0, ROWS * COLUMNS };
    const qn_view x = { acts, QN_DTYPE_F32, TOKENS * COLUMNS }, y = { out, QN_DTYPE_F32, TOKENS * ROWS };
    size_t bytes;
    if (qn_view_bytes(q.dtype, q.count, &bytes) || bytes > sizeof packed || qn_encode(w, q) ||
        qn_matmul(q, ROWS, COLUMNS, x, TOKENS, y)) {
        fprintf(stderr, "matmul: %s\n", qn_error_text());
        return 1;
    }
    double error = 0, norm = 0; /* what int8 activations cost */
    for (size_t t = 0; t < TOKENS; t++)
        for (size_t r = 0; r < ROWS; r++) {
            double exact = 0;
            for (size_t c = 0; c < COLUMNS; c++)
                exact += (double)weights[r * COLUMNS + c] * acts[t * COLUMNS + c];
            error += (out[t * ROWS + r] - exact) * (out[t * ROWS + r] - exact);
            norm += exact * exact;
        }
    printf("%d x %d weights in %zu bytes, relative error %.1e\n", ROWS, COLUMNS, bytes, sqrt(error / norm));
    return !(sqrt(error / norm) < 0.02);
}
