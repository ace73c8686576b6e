/* Internal declarations of the engine: models and sessions. */
#ifndef QN_ENGINE_INTERNAL_H
#define QN_ENGINE_INTERNAL_H

#include "base/team.h"
#include "device/memory.h"
#include "engine/grammars.h"
#include "engine/kept.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "quern/quern.h"
#include "chat/chat.h"
#include "text/tokenizer.h"

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

struct qn_model {
    pid_t process; /* that loaded it (base/process.h) */
    qn_gguf *file;
    qn_hparams hparams; /* with vocab_only this and the members up to `lock` are zero */
    qn_plan plan;
    unsigned cpu;
    qn_team *team;
    qn_device *device;
    pthread_mutex_t lock; /* held while the device runs or reserves (qn_model_lock) */
    pthread_mutex_t turn; /* held while waiting for `lock`, so that of two that run step after step each gets its turn
                           */
    atomic_uintptr_t holder; /* of `lock`: the thread, as qn_model_is_locked_here tells it; 0: none */
    bool has_lock;
    qn_kept_list kept; /* with has_lock */
    qn_grammars *grammars;
    qn_tokenizer *tokenizer; /* NULL if the file has no supported tokeniser */
    qn_chat_template *chat;
    char no_tokenizer[QN_ERROR_TEXT_MAX]; /* the error text if `tokenizer` is NULL */
    char *name;
    qn_model_info info;
    qn_chat_format chat_format;
    const char *quantisation;
    uint64_t n_params;
};

/* A checkpoint: a length that the session can be truncated to. */
typedef struct qn_checkpoint {
    uint32_t length;
    qn_token pending;
    /* The recurrent state. NULL for models without recurrent layers, which can evaluate tokens again instead. */
    qn_memory_checkpoint *memory_checkpoint;
} qn_checkpoint;

enum { QN_MAX_CTX = 1 << 30, QN_NO_TOKEN = -1 };

struct qn_session {
    qn_model *model;
    const qn_kv_format *format; /* of the KV cache: qn_model_kv_format of the requested one */
    qn_memory *memory;
    bool is_recurrent; /* the model has recurrent layers */
    uint32_t n_ctx, n_batch, length;
    qn_token *tokens; /* [n_ctx] of which `length` are in the session; sampling writes the next batch behind them */
    qn_token pending; /* sampled but not evaluated, or QN_NO_TOKEN */
    qn_checkpoint *checkpoints; /* [max_checkpoints] in ascending length; unused slots keep their allocations for reuse
                                 */
    uint32_t n_checkpoints, max_checkpoints;
    qn_row *rows; /* [n_batch] */
    uint32_t *logit_rows;
    qn_progress_fn on_progress;
    void *progress_user;
    atomic_bool cancelled;
    atomic_bool is_used; /* by a call (engine/calls.h) */
};

/* qn_model_kv_format - the cache format with this name (NULL: f16), or f16 if there are no codes for the model's head
 * size or its biases are too large for them (model/kv_bias.h). QN_ERR_UNSUPPORTED for an unknown name.
 *
 * qn_model_log_kv - reports that `format` is not the one with this name (NULL: f16), and why. on_log may be NULL. */
qn_status qn_model_kv_format(const qn_model *model, const char *name, const qn_kv_format **format);
void qn_model_log_kv(const qn_model *model, const char *name, const qn_kv_format *format, qn_log_fn on_log, void *user);

/* qn_model_find_cache - what sequences of a cache format are made of: known from an empty memory, which is created and
 * freed. Sets params->format. */
qn_status qn_model_find_cache(qn_model *model, const qn_kv_format *format, qn_memory_params *params,
                              const qn_cache **cache);

/* qn_model_default_context - n_ctx where 0 is given: the context length used in training, or what the memory holds if
 * that is less. */
uint32_t qn_model_default_context(const qn_model *model, const qn_cache *cache);

/* qn_model_check_tokens - whether all are of the vocabulary; `what` names them. */
qn_status qn_model_check_tokens(const qn_model *model, const char *what, const qn_token *tokens, size_t n);

/* qn_model_lock, qn_model_unlock - around reserving and running a step on the device. */
void qn_model_lock(qn_model *model);
void qn_model_unlock(qn_model *model);

/* qn_model_is_locked_here - whether the calling thread holds that lock. */
bool qn_model_is_locked_here(const qn_model *model);

/* qn_model_check - QN_ERR_IO if the model's file was cut while it was in use: what a step computed from it is not to be
 * used. After each step. It stays so: the model must be loaded again. */
qn_status qn_model_check(const qn_model *model);

/* qn_model_is_awaited - whether another thread waits for the lock, which the caller holds. */
bool qn_model_is_awaited(qn_model *model);

/* qn_model_tokenizer - the tokeniser, or QN_ERR_UNSUPPORTED with the reason why there is none. */
qn_status qn_model_tokenizer(const qn_model *model, const qn_tokenizer **tok);

/* qn_model_find_chat_format - what qn_model_get_chat_format returns. */
void qn_model_find_chat_format(const qn_model *model, qn_chat_format *format);

/* qn_model_output - how answers are parsed: by the chat template, plain without one. False if it has tools whose calls
 * cannot be parsed back. qn_model_calls - the same where calls are needed: QN_ERR_UNSUPPORTED without them. */
bool qn_model_output(const qn_model *model, qn_output_params *output);
qn_status qn_model_calls(const qn_model *model, qn_output_params *output);

/* qn_conversation_input - qn_conversation_tokens at the current time, and how the answer is parsed.
 *
 *   most     tokens; with more, which are counted and take no memory, it is QN_ERR_CONTEXT
 *   output   parameters of a parser, without on_event
 *   kept     their tools, or NULL: free them with qn_output_tools_free, also after an error
 *
 * QN_ERR_UNSUPPORTED also for tools with a chat template that has none, or whose calls cannot be parsed back. */
qn_status qn_conversation_input(const qn_model *model, const char *conversation, size_t length, size_t most,
                                qn_token **tokens, size_t *count, qn_output_params *output, qn_output_tools **kept);

/* qn_model_open_device - create model->device by params->device, from the model's plan and team. Weights are not yet
 * uploaded. */
qn_status qn_model_open_device(qn_model *model, const qn_model_params *params);

/* qn_session_append - qn_session_eval without logits. Does not clear session->cancelled. */
qn_status qn_session_append(qn_session *session, const qn_token *tokens, size_t n);

/* qn_sampler_next_request - the parameters of the next sample. Consumes a random number unless sampling is greedy.
 *
 *   recent   [n_recent] the preceding tokens; must remain valid until the token is sampled. Those behind the n_recent
 *            tokens of the first call are the generated text */
qn_sample_request qn_sampler_next_request(qn_sampler *sampler, const qn_token *recent, size_t n_recent);

/* qn_sampler_take_back - let the generator continue before its last n requests. */
void qn_sampler_take_back(qn_sampler *sampler, size_t n);

/* qn_sampler_set_text - what a request depends on besides the logits and the random number, by the tokens that precede
 * its token. */
void qn_sampler_set_text(const qn_sampler *sampler, const qn_token *recent, size_t n_recent,
                         qn_sample_request *request);

/* qn_sampler_breaker_bytes - the memory of DRY's breakers, which may be as many as the vocabulary has tokens. */
size_t qn_sampler_breaker_bytes(const qn_sampler *sampler);

/* qn_sampler_observe - after a token has been sampled, and before the next request: mirostat follows its surprise. */
void qn_sampler_observe(qn_sampler *sampler, const qn_sample_request *sampled);

/* qn_sampler_sample - sample by a request from logits [n_vocab] on the host, with the result of qn_sample_token. One
 * thread at a time. */
qn_status qn_sampler_sample(qn_sampler *sampler, const float *logits, qn_sample_request *request);

/* qn_session_add_checkpoint - append a checkpoint; with max_checkpoints in use, the oldest is dropped. The caller sets
 * its length, pending token and state. */
qn_status qn_session_add_checkpoint(qn_session *session, qn_checkpoint **out);

/* qn_model_fingerprint - a hash that identifies the model: xxHash64 of the hyperparameters, of the names, types and
 * shapes of the tensors, and of samples of their weights. The tokeniser and descriptive keys are not included. */
qn_status qn_model_fingerprint(const qn_model *model, uint64_t *out);

/* qn_scan_tensor - scan a tensor for infinities and NaN, on all threads of the team.
 *
 *   on_progress   called with *done and total; NULL: none. QN_ERR_CANCELLED if it returns false
 *   done          bytes scanned so far; the bytes of the tensor are added
 *   total         bytes of all tensors
 *
 * QN_ERR_FORMAT, with tensor and block, for an infinity or NaN. */
qn_status qn_scan_tensor(const qn_gguf *file, const qn_gguf_tensor *tensor, qn_team *team, qn_progress_fn on_progress,
                         void *user, size_t *done, size_t total);

/* qn_load_json - parse JSON of untrusted text, nested at most 256 deep, as qn_json_decode does.
 *
 *   what    "conversation": the errors' name for it
 *   flags   jansson's, beside JSON_ALLOW_NUL
 *   out     free it with json_decref
 *
 * QN_ERR_INVALID, with line and column. */
qn_status qn_load_json(const char *what, const char *text, size_t length, size_t flags, json_t **out);

/* qn_step_positions - the workspace of a step, in positions, for sequences of up to `length` tokens: it grows in few
 * steps, to at most n_ctx. */
static inline size_t qn_step_positions(size_t length, size_t n_ctx)
{
    size_t positions = 4096;
    while (positions < length)
        positions *= 2;
    return positions < n_ctx ? positions : n_ctx;
}

/* qn_now - seconds of a monotonic clock. */
double qn_now(void);

#endif
