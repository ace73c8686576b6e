/* What the engine's files share: the insides of a model and a session. */
#ifndef QN_ENGINE_INTERNAL_H
#define QN_ENGINE_INTERNAL_H

#include "base/team.h"
#include "cache/kv.h"
#include "cache/recurrent.h"
#include "device/cpu/executor.h"
#include "device/device.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "quern/quern.h"
#include "text/chat.h"
#include "text/tokenizer.h"

#include <pthread.h>
#include <stdatomic.h>

struct qn_model {
    qn_gguf *file;
    qn_hparams hparams; /* zero for a vocabulary alone, as is all that follows up to the lock */
    qn_plan plan;
    qn_kernels kernels;
    unsigned cpu;
    qn_team *team;
    qn_device *device;
    qn_aura_codec *codecs[QN_KV_MAX_BITS + 1]; /* of caches, by bits; made when the first session asks */
    uint8_t **packed;                          /* [n_packed] copies that the plan's matrices point to */
    size_t n_packed, cap_packed;
    pthread_mutex_t lock; /* held while the plan runs or is reserved, and while codecs are made */
    bool has_lock;
    qn_tokenizer *tokenizer; /* NULL when the file has none that quern can use */
    qn_chat_template *chat;
    char no_tokenizer[QN_ERROR_TEXT_MAX]; /* why it is NULL */
    char *name;
    const char *quantization;
    uint64_t n_params;
};

/* A length to go back to. */
typedef struct qn_checkpoint {
    uint32_t length;
    qn_token pending;
    qn_memory_checkpoint
        *memory_checkpoint; /* NULL where the model has no recurrent layers: others can compute again what their caches miss */
} qn_checkpoint;

enum { QN_MAX_CTX = 1 << 30, QN_NO_TOKEN = -1 };

struct qn_session {
    qn_model *model;
    const qn_kv_format *format; /* of the cache: what was asked for, or f16 where the model's head size has no codes */
    qn_memory *memory;
    bool is_recurrent; /* some of its layers are */
    uint32_t n_ctx, n_batch, length;
    qn_token *tokens;           /* [n_ctx] what it holds, for the repetition penalty */
    qn_token pending;           /* generated and not evaluated, or QN_NO_TOKEN */
    qn_checkpoint *checkpoints; /* [max_checkpoints] lengths rising; slots that are not in use keep their memory */
    uint32_t n_checkpoints, max_checkpoints;
    qn_row *rows; /* [n_batch] */
    uint32_t *logit_rows;
    qn_progress_fn on_progress;
    void *progress_user;
    atomic_bool cancelled;
};

/* qn_model_kv_format - the format of that name, NULL for the default; or f16 where the model's head size has no codes.
 * QN_ERR_UNSUPPORTED when there is no such name. */
qn_status qn_model_kv_format(const qn_model *model, const char *name, const qn_kv_format **format);

/* qn_model_kv_codecs - what a cache of that format encodes with; the model's. The lock must not be held. */
qn_status qn_model_kv_codecs(qn_model *model, const qn_kv_format *format, qn_kv_codecs *codecs);

/* qn_model_tokenizer - the tokeniser, or QN_ERR_UNSUPPORTED with why there is none. */
qn_status qn_model_tokenizer(const qn_model *model, const qn_tokenizer **tok);

/* qn_model_open_device - the device of that name, with the plan, kernels and team that the model has; weights are still to be
 * uploaded, where it asks for that. */
qn_status qn_model_open_device(qn_model *model, const qn_model_params *params);

/* qn_session_append - qn_session_eval without logits, which leaves a request to cancel standing for the caller to clear. */
qn_status qn_session_append(qn_session *session, const qn_token *tokens, size_t n);

/* qn_session_sample - append tokens, n >= 1, as qn_session_append does, and choose the one that follows. Where that fails,
 * being QN_ERR_INVALID for logits of which none is the largest, the tokens are held. */
qn_status qn_session_sample(qn_session *session, const qn_token *tokens, size_t n, qn_sampler *sampler, qn_token *next);

/* qn_sampler_next_request - how the sampler's next token is to be chosen; its random number is used up. recent: the tokens before it,
 * which must be there until it is chosen. */
qn_sample_request qn_sampler_next_request(qn_sampler *sampler, const qn_token *recent, size_t n_recent);

/* qn_session_add_checkpoint - room for one more checkpoint, the oldest making way if need be; its length, pending token
 * and mark are the caller's to fill. */
qn_status qn_session_add_checkpoint(qn_session *session, qn_checkpoint **out);

/* qn_model_fingerprint - a number that tells models apart: xxHash64 of what the file says of hyper-parameters, of tensor names,
 * types and shapes, and of a few bytes of each tensor's weights. The tokeniser and texts about the model are not in it. */
qn_status qn_model_fingerprint(const qn_model *model, uint64_t *out);

/* qn_scan_tensor - look through a tensor for infinities and NaN, on all threads of the team. QN_ERR_FORMAT names the tensor and
 * the block. on_progress, which may be NULL, is told of *done bytes, to which the tensor's are added, out of total. */
qn_status qn_scan_tensor(const qn_gguf *file, const qn_gguf_tensor *tensor, qn_team *team, qn_progress_fn on_progress,
                         void *user, size_t *done, size_t total);

/* qn_pack_tensor - where the model's products with this tensor are faster over packed rows, pack it. */
qn_status qn_pack_tensor(qn_model *model, const qn_gguf_tensor *tensor);

/* qn_now - seconds on a clock that never goes back. */
double qn_now(void);

#endif
