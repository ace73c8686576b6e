/* Internal declarations of the engine: models and sessions. The public functions are in model.c (loading), session.c
 * and session_state.c (sessions), conversation.c and tokens.c (text), sampler.c, grammars.c and quantize.c. calls.h
 * checks where they may be called; scheduler/ evaluates many sequences of one model together. */
#ifndef QN_ENGINE_INTERNAL_H
#define QN_ENGINE_INTERNAL_H

#include "base/team.h"
#include "device/memory.h"
#include "engine/grammars.h"
#include "engine/kept.h"
#include "engine/ranking.h"
#include "engine/spec/draft_sequence.h"
#include "engine/spec/drafting.h"
#include "engine/state_file.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "quern/quern.h"
#include "chat/chat.h"
#include "text/tokenizer.h"

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

/* A loaded model, shared by any number of threads. Members are constant after qn_model_load, but for the locks, and for
 * the contents of `kept`, `drafting` and `grammars`, which have locks of their own. After loading, only the thread that
 * holds `lock` may use `team` and `device`; memories may be created, changed and freed without it. Locks are taken in
 * this order: `turn`, `lock`, those of `kept`, that of the device's pool. */
struct qn_model {
    pid_t process;           /* that loaded it (base/process.h) */
    qn_gguf *file, *drafter; /* drafter: of the draft head; NULL without one */
    qn_hparams hparams;      /* with vocab_only this and the members up to `lock` are zero */
    qn_plan plan;
    qn_model_head head;
    unsigned cpu;
    qn_team *team;
    qn_device *device;
    pthread_mutex_t lock;    /* held while the device runs or reserves (qn_model_lock) */
    pthread_mutex_t turn;    /* held while waiting for `lock`, so that two threads that run step after step alternate */
    atomic_uintptr_t holder; /* id of the thread that holds `lock` (qn_model_is_locked_here); 0: none */
    bool has_lock;
    qn_kept_list kept;     /* with has_lock */
    qn_drafting *drafting; /* has a lock of its own */
    /* NULL, or a model that drafts for this one, with its runner. It runs on this model's team, and under this model's
     * `lock`: its own is not used. */
    qn_model *draft;
    qn_draft_runner *draft_runner;
    bool is_draft;       /* it is the draft model of another one, which owns `team` */
    double memory_share; /* qn_device_params.memory_share */
    qn_grammars *grammars;
    qn_tokenizer *tokenizer; /* NULL if the file has no supported tokeniser */
    qn_chat_template *chat;
    char no_tokenizer[QN_ERROR_TEXT_MAX]; /* the error text if `tokenizer` is NULL */
    char *name;
    qn_pooling pooling;      /* as the file names it */
    qn_infill_tokens infill; /* prefix is -1: there are none */
    qn_ranking ranking;
    qn_model_info info;
    qn_chat_format chat_format;
    const char *quantisation;
    uint64_t n_params;
};

/* A checkpoint: a length that the session can be truncated to. Owned by its session. */
typedef struct qn_checkpoint {
    uint32_t length;
    qn_token pending;
    /* The recurrent state. NULL for models without recurrent layers, which can evaluate tokens again instead. */
    qn_memory_checkpoint *memory_checkpoint;
} qn_checkpoint;

enum { QN_MAX_CTX = 1 << 30, QN_NO_TOKEN = -1 };

/* A session. Used by one thread at a time: by the call that has set is_used, and its callbacks. Only `cancelled` may be
 * set by any thread and by signal handlers. */
struct qn_session {
    qn_model *model;            /* outlives the session */
    const qn_kv_format *format; /* of the KV cache: qn_model_kv_format of the requested one */
    qn_memory *memory;
    bool is_recurrent; /* the model has recurrent layers */
    uint32_t n_ctx, n_batch, length;
    qn_token *tokens; /* [n_ctx], the first `length` are in the session; QN_NO_TOKEN for an embedding. Sampling writes
                         the next batch after them */
    qn_session_row *own_rows; /* [n_own_rows], ascending; NULL until the session has one */
    size_t n_own_rows, cap_own_rows;
    qn_token pending;           /* sampled but not evaluated, or QN_NO_TOKEN */
    qn_checkpoint *checkpoints; /* [max_checkpoints] in ascending length; unused slots keep their allocations for reuse
                                 */
    uint32_t n_checkpoints, max_checkpoints;
    qn_row *rows; /* [n_batch] */
    uint32_t *logit_rows;
    qn_draft_sequence *draft; /* of the draft model, for qn_generate; NULL before the first draft */
    qn_progress_fn on_progress;
    void *progress_user;
    qn_log_fn on_log; /* or NULL */
    void *log_user;
    atomic_bool cancelled;
    atomic_bool is_used; /* a call is using the session (engine/calls.h) */
};

/* qn_model_kv_format - Finds the cache format with this name (NULL: f16), or f16 if AURA codes do not support the
 * model's head size or biases (model/kv_bias.h). QN_ERR_UNSUPPORTED for an unknown name. */
qn_status qn_model_kv_format(const qn_model *model, const char *name, const qn_kv_format **format);

/* qn_model_log_kv - If `format` is not the one with this name (NULL: f16), logs that and the reason. on_log may be
 * NULL. */
void qn_model_log_kv(const qn_model *model, const char *name, const qn_kv_format *format, qn_log_fn on_log, void *user);

/* qn_model_find_cache - Finds the pool classes of a cache format, by creating and freeing an empty memory. Sets
 * params->format. *cache is owned by the device and valid as long as it. Any thread. */
qn_status qn_model_find_cache(qn_model *model, const qn_kv_format *format, qn_memory_params *params,
                              const qn_cache **cache);

/* qn_model_default_context - Returns the default of n_ctx: the context length used in training, or the number of tokens
 * that fit in memory if that is less. */
uint32_t qn_model_default_context(const qn_model *model, const qn_cache *cache);

/* qn_model_check_tokens - QN_ERR_INVALID if a token is outside the vocabulary; `what` names the tokens in the error. */
qn_status qn_model_check_tokens(const qn_model *model, const char *what, const qn_token *tokens, size_t n);

/* qn_model_lock - Locks the model, before reserving and running a step on the device. Waits for other threads, each of
 * which gets its turn. The calling thread must not hold the lock already (qn_model_enter) and unlocks it itself. */
void qn_model_lock(qn_model *model);

/* qn_model_unlock - Unlocks the model after a step, on the thread that locked it. */
void qn_model_unlock(qn_model *model);

/* qn_model_is_locked_here - Returns true if the calling thread holds the model's lock. */
bool qn_model_is_locked_here(const qn_model *model);

/* qn_model_check - QN_ERR_IO if the model's file was truncated while in use: the results of the step are invalid.
 * Called after each step. The error is permanent: the model must be loaded again. Any thread. */
qn_status qn_model_check(const qn_model *model);

/* qn_model_is_awaited - Returns true if another thread waits for the model's lock, which the caller holds. */
bool qn_model_is_awaited(qn_model *model);

/* qn_model_tokenizer - Returns the tokeniser, or QN_ERR_UNSUPPORTED with the reason if there is none. The model owns
 * *tok; it is constant, and any thread may use it. */
qn_status qn_model_tokenizer(const qn_model *model, const qn_tokenizer **tok);

/* qn_model_find_pooling - Reads the pooling that the file names. Called once, by qn_model_load. */
qn_status qn_model_find_pooling(qn_model *model);

/* qn_model_find_infill - Finds the tokens for filling gaps. Called once, by qn_model_load. */
qn_status qn_model_find_infill(qn_model *model);

/* qn_model_find_chat_format - Fills the struct that qn_model_get_chat_format returns. Its strings are those of the
 * model's chat template. Called once, by qn_model_load. */
void qn_model_find_chat_format(const qn_model *model, qn_chat_format *format);

/* qn_model_output - Sets the parameters for parsing answers, from the chat template; plain text without a template.
 * Returns false if the template supports tools but its calls cannot be parsed back. */
bool qn_model_output(const qn_model *model, qn_output_params *output);

/* qn_model_calls - Does what qn_model_output does, but QN_ERR_UNSUPPORTED if calls are not available. */
qn_status qn_model_calls(const qn_model *model, qn_output_params *output);

/* qn_conversation_input - Does what qn_conversation_tokens does at the current time, and sets the parameters for
 * parsing the answer.
 *
 *   most     most tokens; more are only counted, without memory, and are QN_ERR_CONTEXT
 *   output   parameters of a parser, without on_event
 *   kept     the tools that `output` refers to, or NULL: free it with qn_output_tools_free, also after an error
 *
 * Errors are those of qn_conversation_tokens; QN_ERR_UNSUPPORTED also if there are tools and the chat template does not
 * support tools or its calls cannot be parsed back. */
qn_status qn_conversation_input(const qn_model *model, const char *conversation, size_t length, size_t most,
                                qn_token **tokens, size_t *count, qn_output_params *output, qn_output_tools **kept);

/* qn_model_check_draft - QN_OK if answers of the model can be drafted so; errors are those of qn_draft_check, and
 * QN_ERR_UNSUPPORTED, with the reason, for QN_DRAFT_MTP without a draft head and QN_DRAFT_MODEL without a draft
 * model. */
qn_status qn_model_check_draft(const qn_model *model, qn_draft_kind kind);

/* qn_model_open_device - Creates model->device by params->device, from the model's plan and team. Weights are not yet
 * uploaded. Called once, by qn_model_load. */
qn_status qn_model_open_device(qn_model *model, const qn_model_params *params);

/* qn_model_read_draft - Before a model is loaded: checks that the file given as its draft model is one, and computes
 * the share of the memory of sessions that it needs to follow as many tokens as `plan`, the model's, holds. */
qn_status qn_model_read_draft(const char *path, const qn_plan *plan, double *share);

/* qn_model_check_draft_device - QN_ERR_UNSUPPORTED if no draft model runs on the loaded model's device. path: of the
 * draft model. */
qn_status qn_model_check_draft_device(const qn_model *model, const char *path);

/* qn_model_take_draft - Checks that the draft model, which was loaded, can serve the model, and creates its runner.
 * QN_ERR_UNSUPPORTED: another vocabulary, or no model of text. */
qn_status qn_model_take_draft(qn_model *model);

/* qn_session_append - Does what qn_session_eval does without logits. Does not clear session->cancelled. The caller has
 * entered the session (qn_session_enter) and does not hold the model's lock. */
qn_status qn_session_append(qn_session *session, const qn_token *tokens, size_t n);

/* qn_sampler_next_request - Returns the parameters of the next sample. Consumes a random number unless sampling is
 * greedy. They point into `recent` and the sampler. One thread at a time, as for all functions of a sampler.
 *
 *   recent   [n_recent] the preceding tokens; must remain valid until the token is sampled. Tokens after the first
 *            n_recent of the first call are the generated text */
qn_sample_request qn_sampler_next_request(qn_sampler *sampler, const qn_token *recent, size_t n_recent);

/* qn_sampler_take_back - Resets the random number generator to before its last n requests. */
void qn_sampler_take_back(qn_sampler *sampler, size_t n);

/* qn_sampler_set_text - Sets the parts of a request that depend on the preceding tokens. */
void qn_sampler_set_text(const qn_sampler *sampler, const qn_token *recent, size_t n_recent,
                         qn_sample_request *request);

/* qn_sampler_breaker_bytes - Returns the bytes of the breakers of DRY (qn_sampling.dry_breakers), which may be as large
 * as the vocabulary. */
size_t qn_sampler_breaker_bytes(const qn_sampler *sampler);

/* qn_sampler_observe - Updates mirostat with the surprisal of a sampled token. Call it before the next request. */
void qn_sampler_observe(qn_sampler *sampler, const qn_sample_request *sampled);

/* qn_sampler_sample - Samples a request from logits [n_vocab] on the host, with the result of qn_sample_token.
 * Allocates its scratch in the first call. */
qn_status qn_sampler_sample(qn_sampler *sampler, const float *logits, qn_sample_request *request);

/* qn_session_add_checkpoint - Appends a checkpoint; with max_checkpoints in use, the oldest is dropped. The caller sets
 * its length, pending token and state. *out points into the session, until checkpoints are added or dropped. */
qn_status qn_session_add_checkpoint(qn_session *session, qn_checkpoint **out);

/* qn_model_fingerprint - Computes a hash that identifies the model: xxHash64 of the hyperparameters, of the names,
 * types and shapes of the tensors, and of samples of their weights. The tokeniser and descriptive keys are not
 * included. */
qn_status qn_model_fingerprint(const qn_model *model, uint64_t *out);

/* qn_model_head_fingerprint - The same of the file that has the model's draft head, which may be the model's. */
qn_status qn_model_head_fingerprint(const qn_model *model, uint64_t *out);

/* qn_scan_tensor - scan a tensor for infinities and NaN, on all threads of the team. Any thread, but the team is the
 * caller's meanwhile.
 *
 *   on_progress   called with *done and total, on the calling thread; NULL: none. QN_ERR_CANCELLED if it returns false
 *   done          bytes scanned so far; the bytes of the tensor are added
 *   total         bytes of all tensors
 *
 * QN_ERR_FORMAT, with tensor and block, for an infinity or NaN. */
qn_status qn_scan_tensor(const qn_gguf *file, const qn_gguf_tensor *tensor, qn_team *team, qn_progress_fn on_progress,
                         void *user, size_t *done, size_t total);

/* qn_load_json - parse JSON of untrusted text, nested at most 256 deep, as qn_json_decode does.
 *
 *   what    "conversation": the errors' name for it
 *   flags   jansson's, in addition to JSON_ALLOW_NUL
 *   out     free it with json_decref
 *
 * QN_ERR_INVALID, with line and column. */
qn_status qn_load_json(const char *what, const char *text, size_t length, size_t flags, json_t **out);

/* qn_step_positions - Returns the workspace of a step, in positions, for sequences of up to `length` tokens: it
 * doubles, up to n_ctx. */
static inline size_t qn_step_positions(size_t length, size_t n_ctx)
{
    size_t positions = 4096;
    while (positions < length)
        positions *= 2;
    return positions < n_ctx ? positions : n_ctx;
}

/* qn_now - Returns the time of a monotonic clock in seconds. */
double qn_now(void);

#endif
