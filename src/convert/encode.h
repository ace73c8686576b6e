/* Reads, reorders and encodes tensors on a thread team, in pieces that bound the memory. */
#ifndef QN_CONVERT_ENCODE_H
#define QN_CONVERT_ENCODE_H

#include "convert/targets.h"
#include "gguf/gguf.h"

typedef struct qn_encoder qn_encoder;

/* qn_encoder_create - creates a team of threads with buffers for the tensors of `targets`. Free it with
 * qn_encoder_free. */
qn_status qn_encoder_create(const qn_targets *targets, int n_threads, qn_encoder **out);
void qn_encoder_free(qn_encoder *encoder);

/* qn_encoder_classify - determines the kind of the values in the groups of 128 weights of a matrix.
 *
 *   whole   false: reads a sample, and the result is a guess that qn_encoder_write verifies; true: reads every group
 *   kind    set on success; a matrix whose rows are not multiples of 128 is QN_WEIGHTS_ORDINARY
 *
 * Errors are those of qn_encoder_write. */
qn_status qn_encoder_classify(qn_encoder *encoder, const qn_target *target, bool whole, qn_weight_kind *kind);

/* qn_encoder_write - encodes a tensor to target->to and appends it to the file.
 *
 *   difference   of a lossless target: the largest difference between a weight and its stored value; greater than 0 if
 *                the guess was wrong. The rest of the tensor is then not written
 *   report       called between pieces with the number of source bytes read since the last call; a status other than
 *                QN_OK ends the work, with its error text
 *
 * The last piece is written with the next tensor, or by qn_encoder_flush.
 *
 * QN_ERR_IO       the source cannot be read, or the file cannot be written
 * QN_ERR_FORMAT   a weight is infinite or NaN */
typedef qn_status (*qn_encoder_report)(void *user, uint64_t bytes);
qn_status qn_encoder_write(qn_encoder *encoder, const qn_target *target, qn_gguf_writer *writer,
                           qn_encoder_report report, void *user, float *difference);

/* qn_encoder_flush - writes the last piece. */
qn_status qn_encoder_flush(qn_encoder *encoder, qn_gguf_writer *writer);

/* qn_encoder_reset - drops the last piece, for a new file. */
void qn_encoder_reset(qn_encoder *encoder);

#endif
