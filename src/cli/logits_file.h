/* Files of log probabilities, in the format that llama-perplexity writes with --save-all-logits and reads with
 * --kl-divergence-base, so that files can be exchanged with it.
 *
 * The layout, after llama.cpp's tools/perplexity/perplexity.cpp; little-endian, without padding but where it says so:
 *
 *   char     magic[8]                "_logits_"
 *   int32    n_ctx                   tokens in a piece ("chunk" there)
 *   int32    n_vocab
 *   int32    n_chunks
 *   int32    tokens[n_chunks][n_ctx] as tokenised: a beginning-of-text token has not replaced the first of a piece
 *   then, for each piece and each position from n_ctx / 2 to n_ctx - 2, one row of 2 * ceil(n_vocab / 2) + 4 uint16:
 *     float    scale                 the size of a code's step
 *     float    min                   log probability of code 0
 *     uint16   codes[n_vocab]        log probability = min + scale * code; with an odd n_vocab one unused value follows
 *
 * Codes span the logits from max(smallest, largest - 16) to the largest: smaller ones have code 0, and with it a log
 * probability that is too large. The row of a position predicts the token after it. */
#ifndef QN_CLI_LOGITS_FILE_H
#define QN_CLI_LOGITS_FILE_H

#include "base/atomic_file.h"
#include "quern/quern.h"

#include <stdio.h>

enum { QN_LOGITS_MIN_CTX = 3 }; /* fewer have no rows */

/* qn_logits_rows - returns the number of rows of a piece of n_ctx tokens. */
static inline size_t qn_logits_rows(size_t n_ctx)
{
    return n_ctx - 1 - n_ctx / 2;
}

typedef struct qn_logits_writer {
    qn_atomic_file file;
    uint16_t *row;
    size_t n_vocab, row_values;
} qn_logits_writer;

/* qn_logits_create - begins a file and writes everything before its rows: tokens [n_chunks * n_ctx], n_ctx at least
 * QN_LOGITS_MIN_CTX. The file replaces `path` when it is committed. Free with qn_logits_writer_free, even after an
 * error. */
qn_status qn_logits_create(qn_logits_writer *writer, const char *path, size_t n_ctx, size_t n_vocab, size_t n_chunks,
                           const qn_token *tokens);

/* qn_logits_write - appends a row, the log probabilities of finite logits [n_vocab]. */
qn_status qn_logits_write(qn_logits_writer *writer, const float *logits);
qn_status qn_logits_commit(qn_logits_writer *writer);
void qn_logits_writer_free(qn_logits_writer *writer);

typedef struct qn_logits_reader {
    FILE *file;
    const char *path;
    size_t n_ctx, n_vocab, n_chunks;
    qn_token *tokens; /* [n_chunks * n_ctx] */
    uint16_t *row;
    size_t row_values, n_read; /* rows */
} qn_logits_reader;

/* qn_logits_is_file - whether a file begins as files of log probabilities do. */
bool qn_logits_is_file(const char *path);

/* qn_logits_open - opens a file for a model with n_vocab tokens and reads its tokens; `path` is not copied.
 * QN_ERR_FORMAT if it has another size than its head tells, another vocabulary, or tokens outside of it. Free with
 * qn_logits_close, even after an error. */
qn_status qn_logits_open(qn_logits_reader *reader, const char *path, size_t n_vocab);

/* qn_logits_read - reads the next row: log_probs [n_vocab]. QN_ERR_FORMAT if they are no log probabilities. */
qn_status qn_logits_read(qn_logits_reader *reader, float *log_probs);
void qn_logits_close(qn_logits_reader *reader);

#endif
