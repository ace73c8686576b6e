/* Copies tensors of an open GGUF file to a writer, as they are or converted to another type, in pieces that bound the
 * memory, on a thread team. What types tensors get, and keys, are left to the caller. */
#ifndef QN_ENGINE_RECODE_H
#define QN_ENGINE_RECODE_H

#include "gguf/gguf.h"
#include "quant/quant.h"

typedef struct qn_recoder qn_recoder;

/* Called after each piece with the bytes of the source that it had; a status other than QN_OK ends the work, with its
 * error text. */
typedef qn_status (*qn_recode_report)(void *user, uint64_t bytes);

/* qn_recoder_create - creates a team of n_threads (0: as many as are best) and a buffer. The writer outlives the
 * recoder, which qn_recoder_free frees. */
qn_status qn_recoder_create(qn_gguf_writer *writer, int n_threads, qn_recode_report report, void *user,
                            qn_recoder **out);
void qn_recoder_free(qn_recoder *recoder);

/* qn_recode_check - QN_ERR_UNSUPPORTED, naming the tensor, for the type that is not converted: NVFP4, whose scales are
 * partly in another tensor. */
qn_status qn_recode_check(const qn_gguf *source, const qn_gguf_tensor *tensor);

/* qn_recode_tensor - appends a tensor, converted to the type `to`.
 *
 *   source   the file with the tensor, which passed qn_recode_check
 *   to       a type that quern writes, or the tensor's own: the data are then scanned and stay the same
 *   force    weights may be written in a type of 1 or 2 bits that does not represent them
 *   lossy    set to whether `to` has 1 or 2 bits and does not represent the weights; NULL is allowed
 *
 * QN_ERR_FORMAT    a weight is infinite, NaN or too large for the type
 * QN_ERR_INVALID   without `force`, a type of 1 or 2 bits does not represent the weights
 * QN_ERR_IO        the source was cut, or the target cannot be written */
qn_status qn_recode_tensor(qn_recoder *recoder, const qn_gguf *source, const qn_gguf_tensor *tensor,
                           const qn_type_info *to, bool force, bool *lossy);

/* qn_recode_copy - appends a tensor's bytes, whatever they are. QN_ERR_IO as above. */
qn_status qn_recode_copy(qn_recoder *recoder, const qn_gguf *source, const qn_gguf_tensor *tensor);

#endif
