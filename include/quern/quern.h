/* quern: run 1-bit and ternary language models from a C program.
 *
 * A model is loaded once and shared; a session is one conversation with it: the tokens seen so far and what the model remembers
 * of them. Tokens go in, logits or text come out.
 *
 *     qn_model *model;
 *     qn_session *session;
 *     if (qn_model_load("model.gguf", NULL, &model) || qn_session_create(model, NULL, &session))
 *         return fprintf(stderr, "%s\n", qn_error_text()), 1;
 *     qn_generate_params params = qn_generate_defaults();
 *     params.on_text = print_text;
 *     qn_generate_text(session, "Once upon a time", &params, NULL);
 *     qn_session_free(session);
 *     qn_model_free(model);
 *
 * Every function that returns qn_status leaves its outputs alone, or NULL, when it fails; qn_error_text() says why.
 * Threads: a qn_model may be used from any number of threads; its evaluations take turns on the model's team of threads.
 * A qn_session belongs to one thread at a time, but for qn_session_cancel.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUERN_QUERN_H
#define QUERN_QUERN_H

#include "quern/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qn_model qn_model;
typedef struct qn_session qn_session;
typedef int32_t qn_token; /* an index into the vocabulary */

/* qn_version - "major.minor.patch" of the library. */
QN_API const char *qn_version(void);

/* ---- Model ---- */

/* Called now and then during long work with how much of it is done, on the thread that asked for the work.
 * Returning false stops the work, which then fails with QN_ERR_CANCELLED. */
typedef bool (*qn_progress_fn)(void *user, size_t done, size_t total);

/* One line for the log ("type 42 holds groups of 128"), not terminated by a newline. */
typedef void (*qn_log_fn)(void *user, const char *line);

typedef struct qn_model_params {
    const char *device;    /* what runs the model: NULL or "cpu"; "cuda", "cuda:N", the N-th GPU from 0; or
                              "auto", the first GPU where there is one that can, else the CPU */
    int n_threads;         /* 0: as many as there are physical cores; at most 1024 */
    bool vocab_only;       /* read the tokeniser alone: a file without tensors is enough, and sessions are refused */
    bool skip_weight_scan; /* do not look for infinities and NaN in the weights */
    qn_progress_fn on_progress;
    qn_log_fn on_log;
    void *user; /* handed to both */
} qn_model_params;

/* qn_model_load - map a GGUF file, check it, and make it ready to run.
 *
 *   params   NULL for the defaults (all zero)
 *   out      owned by the caller: qn_model_free
 *
 * A model in several files (PREFIX-00001-of-00003.gguf and so on, as llama.cpp's gguf-split writes them) is loaded whole by the
 * path of any of them; all are expected in the same folder, and QN_ERR_IO names those that are missing.
 *
 * The file stays mapped and must not change while the model lives. QN_ERR_FORMAT for a damaged file, QN_ERR_UNSUPPORTED for an
 * architecture, tensor type or tokeniser that quern does not have, naming it. A file whose tokeniser is absent ("no_vocab")
 * loads; functions that need text then fail. A tokeniser that quern does not have is an error with vocab_only, and otherwise
 * the same as an absent one: functions that need text name it. */
QN_API qn_status qn_model_load(const char *path, const qn_model_params *params, qn_model **out);

/* qn_model_free - every session of the model must be freed before it. NULL is allowed. */
QN_API void qn_model_free(qn_model *model);

typedef struct qn_model_info {
    const char *name;         /* general.name, or "" */
    const char *architecture; /* "qwen3" */
    const char *quantisation; /* the type that holds most of the weights: "q1_0" */
    uint32_t n_vocab;
    uint32_t n_layers;
    uint32_t n_embd;
    uint32_t n_ctx_train; /* the context the model was trained for */
    uint64_t n_params;    /* weights in all tensors */
    uint64_t file_bytes;
    uint64_t bytes_per_token;          /* weights that decoding one token reads; the cache comes on top */
    uint64_t cache_bytes_per_position; /* f16 KV cache: bytes that one more token of context takes */
    uint64_t recurrent_bytes;          /* states of recurrent layers, as large for any context: every token reads them, every
                                          64th writes them; 0 where the model has none */
    int n_threads;
    const char *cpu;           /* instruction set in use: "avx512" */
    const char *device;        /* what runs it: "cpu", "cuda:0"; "" for a vocabulary alone */
    const char *tokeniser;     /* "gpt2/qwen2", or "" when the file has none that quern can use */
    const char *chat_template; /* "chatml", or "" when the file has none that quern knows */
} qn_model_info;

/* qn_model_get_info - facts about a model; strings live as long as the model. */
QN_API qn_model_info qn_model_get_info(const qn_model *model);

/* ---- Text ---- */

/* qn_tokenize - text to token ids.
 *
 *   text, length   any bytes, UTF-8 or not; need not be terminated
 *   parse_special  whether special tokens written in the text ("<|im_end|>") become their ids; pass false for untrusted text
 *   add_bos        whether the tokeniser's beginning-of-text token goes first, where the model asks for one
 *   tokens         [*count] owned by the caller: qn_free_tokens. An empty text gives zero tokens and a valid pointer. */
QN_API qn_status qn_tokenize(const qn_model *model, const char *text, size_t length, bool parse_special, bool add_bos,
                             qn_token **tokens, size_t *count);
QN_API void qn_free_tokens(qn_token *tokens);

/* qn_token_piece - the bytes that one token stands for; not terminated, possibly half a character; owned by the model.
 * Special tokens give their name ("<|im_end|>"). QN_ERR_INVALID for an id outside the vocabulary. */
QN_API qn_status qn_token_piece(const qn_model *model, qn_token token, const char **bytes, size_t *length);

/* qn_token_is_special - whether the token is a control token, which generated text does not show; false outside the vocabulary.
 */
QN_API bool qn_token_is_special(const qn_model *model, qn_token token);
/* qn_token_is_end - whether generation ends at this token (end of text, end of turn). */
QN_API bool qn_token_is_end(const qn_model *model, qn_token token);

typedef struct qn_chat_message {
    const char *role;    /* "system", "user" or "assistant" */
    const char *content; /* UTF-8 */
} qn_chat_message;

/* qn_chat_tokens - a conversation in the model's own chat format, as tokens.
 *
 *   messages, n         in order; contents are never read as special tokens
 *   add_assistant       whether the opening of the assistant's next turn follows
 *   tokens, count       as for qn_tokenize
 *
 * The one format so far is plain ChatML: "<|im_start|>role\ncontent<|im_end|>\n" for each message, contents as they are, and
 * "<|im_start|>assistant\n" to open a turn. The beginning-of-text token goes first where the template puts it there, and so does
 * the template's own system message where the first message is not the system's.
 *
 * QN_ERR_UNSUPPORTED when the file carries no chat template, one of another family, or one that does anything else for some
 * conversation of these roles: opens an answer with <think>, trims contents, takes reasoning out of earlier turns. The text says
 * what it carries. A template's answer to tools is not looked at. */
QN_API qn_status qn_chat_tokens(const qn_model *model, const qn_chat_message *messages, size_t n, bool add_assistant,
                                qn_token **tokens, size_t *count);

/* ---- Session ---- */

typedef struct qn_session_params {
    uint32_t n_ctx;   /* tokens it can hold; 0: the smaller of 4096 and what the model was trained for */
    uint32_t n_batch; /* rows that one step works on, 1 to 4096; 0: 128, or 2048 on a GPU. Affects memory and speed, and on
                         the CPU never results */
    const char *kv;   /* cache format: NULL or "f16"; or AURA codes of so many bits: "aura8", "aura6", "aura4", "aura3",
                         "aura2", and "aura4v3", "aura4v2" with fewer for values than for keys */
    uint32_t n_checkpoints; /* how many qn_session_checkpoint keeps, 1 to 64; 0: 4 */
    qn_log_fn on_log;       /* told when the cache is of another format than `kv`; NULL: nobody is */
    void *user;             /* handed to it */
} qn_session_params;

/* qn_session_create - an empty session. params NULL for the defaults. Memory for n_ctx positions is reserved at once and
 * becomes resident as it fills. The model must outlive it. Codes need heads of 64, 80, 96, 128, 192, 256 or 512 values; where a
 * model has others the cache is f16, and on_log is told. */
QN_API qn_status qn_session_create(qn_model *model, const qn_session_params *params, qn_session **out);
QN_API void qn_session_free(qn_session *session);

/* qn_session_length - tokens held. qn_session_capacity - tokens it can hold. */
QN_API uint32_t qn_session_length(const qn_session *session);
QN_API uint32_t qn_session_capacity(const qn_session *session);

/* qn_session_tokens - the tokens held, [qn_session_length]; owned by the session, valid until it changes. */
QN_API const qn_token *qn_session_tokens(const qn_session *session);

/* qn_session_truncate - forget all but the first `length` tokens. QN_ERR_INVALID when it holds fewer.
 *
 * Any length will do for a model without recurrent layers; with a cache of codes, up to 63 tokens are then evaluated once more,
 * and where memory for that is missing (QN_ERR_MEMORY) so many fewer are held. Recurrent layers fold every 64 tokens into their
 * state, which cannot be undone: a session of n tokens can go back to the lengths above (n-1)/64*64 (of the chunk that is still
 * open), to those that a checkpoint of n tokens could go back to, and to 0. On a GPU every token is folded in at once: only the
 * lengths of checkpoints and 0 are left. Any other is QN_ERR_UNSUPPORTED, the text names those that are possible, and nothing
 * changes. Checkpoints of more than `length` tokens are dropped. */
QN_API qn_status qn_session_truncate(qn_session *session, uint32_t length);

/* qn_session_checkpoint - remember the present length as one to go back to, with what is pending at it (qn_session_pending).
 *
 * For models with recurrent layers this copies their memory: states and open chunks, which is qn_session_cache_bytes(session,
 * 0) bytes, and 64 tokens' halves of a cache of codes. The newest params->n_checkpoints are kept, the oldest goes when one more
 * comes; their memory is the session's until it is freed. They belong to the session: forks have copies, files do not have
 * them. QN_ERR_MEMORY: there is none. */
QN_API qn_status qn_session_checkpoint(qn_session *session);

/* qn_session_reach - the greatest length, not above `length`, to which qn_session_truncate can go back; 0 if no other. */
QN_API uint32_t qn_session_reach(const qn_session *session, uint32_t length);

/* qn_session_pending - whether the last qn_generate made a token that it did not evaluate, and which: the first to pass to
 * the next call when the conversation goes on. Evaluating anything, or truncating to fewer tokens, forgets it; truncating to
 * the length of a checkpoint brings back the one that was pending there. */
QN_API bool qn_session_pending(const qn_session *session, qn_token *token);

/* qn_session_kv - the format of its cache: "aura4". */
QN_API const char *qn_session_kv(const qn_session *session);

/* qn_session_cache_bytes - bytes of cache that `length` tokens take: keys and values of each, and what recurrent layers
 * remember, which is the same for any length. In a cache of codes the first 64 tokens and the last length mod 64 are halves. */
QN_API uint64_t qn_session_cache_bytes(const qn_session *session, uint32_t length);

/* qn_session_fork - a session of its own with the same contents: tokens, cache, what is pending, checkpoints. What is held is
 * copied, not what could be. Both go on as if the other were not there; neither progress function nor a request to cancel is
 * taken over. The caller frees it with qn_session_free. */
QN_API qn_status qn_session_fork(const qn_session *session, qn_session **out);

/* qn_session_save - write what the session holds to a file, which appears whole or not at all: tokens, cache, what is pending.
 * QN_ERR_INVALID when `path` exists, is not empty and is not a session file: it stays as it is. QN_ERR_IO when it cannot be written. The file
 * is about qn_session_cache_bytes(session, qn_session_length(session)) large. It
 * holds the conversation, and can be read by whoever the umask lets read it. */
QN_API qn_status qn_session_save(const qn_session *session, const char *path);

/* qn_session_restore - a session as it was when it was saved. Logits are the same, to the last bit, as if it had never stopped
 * (with the same instruction set).
 *
 *   model    the model it was saved with: the same hyper-parameters and tensors; a copy of the file will do
 *   params   as for qn_session_create, NULL for the defaults. n_ctx may differ from what it was, and 0 is what it was; too
 *            small for the tokens is QN_ERR_CONTEXT. kv must be NULL or what the file has
 *   out      the caller frees it with qn_session_free
 *
 * A session saved with its model on a GPU goes on only on a GPU, and one saved on the CPU only there: QN_ERR_UNSUPPORTED.
 * Nothing in the file is trusted. QN_ERR_FORMAT for one that is damaged, cut short or no session at all, QN_ERR_UNSUPPORTED for
 * another version or cache format, QN_ERR_INVALID for another model, QN_ERR_IO when it cannot be read. A file that was made to
 * deceive, with checksums that are right, can make the session say anything, but no more. */
QN_API qn_status qn_session_restore(qn_model *model, const char *path, const qn_session_params *params, qn_session **out);

typedef enum qn_logits { QN_LOGITS_NONE, QN_LOGITS_LAST, QN_LOGITS_ALL } qn_logits;

/* qn_session_eval - append tokens and compute what follows them.
 *
 *   tokens   [n] ids inside the vocabulary; n may be 0 (nothing happens)
 *   which    which rows of logits to compute
 *   logits   f32 [n_vocab] for LAST, [n, n_vocab] row-major for ALL; NULL for NONE
 *
 * On the CPU logits of a token do not depend on how the tokens were split over calls nor on the number of threads, to the last
 * bit. On a GPU the same calls give the same bits; others differ from them as int8 activations and halves do.
 * QN_ERR_CONTEXT when they do not fit, QN_ERR_INVALID for an id outside the vocabulary: the session is then unchanged.
 * QN_ERR_CANCELLED: the tokens of the batches that were finished stay, and with ALL their logits have been written. */
QN_API qn_status qn_session_eval(qn_session *session, const qn_token *tokens, size_t n, qn_logits which, float *logits);

/* qn_session_on_progress - a function called between the batches of a long qn_session_eval; NULL for none. */
QN_API void qn_session_on_progress(qn_session *session, qn_progress_fn on_progress, void *user);

/* qn_session_cancel - make the session's running, or else its next, evaluation or generation stop as soon as a batch is done,
 * with QN_ERR_CANCELLED or QN_STOP_CANCELLED. One that ends by itself before it looks is over, and the next one is not
 * cancelled in its place. From any thread, and from a signal handler. */
QN_API void qn_session_cancel(qn_session *session);

/* ---- Sampling ---- */

typedef struct qn_sampling {
    float temperature;    /* below 1e-6: always the likeliest token (the lowest id of equals) */
    int top_k;            /* keep the k likeliest; 0: all */
    float top_p;          /* keep the likeliest until their probabilities reach this; 1: all */
    float min_p;          /* drop tokens less likely than this times the likeliest; 0: none */
    float repeat_penalty; /* > 1 makes recent tokens less likely: their logits are divided by it, or multiplied when negative;
                             1: off */
    int repeat_last_n;    /* how many recent tokens that looks at */
    uint64_t seed;        /* the same seed and logits give the same tokens on every machine and device */
} qn_sampling;

/* qn_sampling_defaults - temperature 0.8, top_k 40, top_p 0.95, min_p 0.05, no repetition penalty (over 64), seed 0. */
QN_API qn_sampling qn_sampling_defaults(void);

typedef struct qn_sampler qn_sampler;

/* qn_sampler_create - QN_ERR_INVALID, naming the field, for a value outside: temperature >= 0, top_k >= 0, top_p in (0,1],
 * min_p in [0,1), repeat_penalty in [0.001,1000] (logits stay finite), repeat_last_n >= 0, all finite. */
QN_API qn_status qn_sampler_create(const qn_sampling *params, size_t n_vocab, qn_sampler **out);
QN_API void qn_sampler_free(qn_sampler *sampler);

/* qn_sampler_pick - choose the next token. Order: penalty, top_k, temperature, top_p, min_p, draw.
 *   logits   [n_vocab] f32, not changed; at least one must be finite, NaN is QN_ERR_INVALID
 *   recent   the tokens before it, for the penalty; the last repeat_last_n of them count */
QN_API qn_status qn_sampler_pick(qn_sampler *sampler, const float *logits, const qn_token *recent, size_t n_recent,
                                 qn_token *token);

/* ---- Generation ---- */

typedef enum qn_stop_reason {
    QN_STOP_END,      /* the model ended its text */
    QN_STOP_STRING,   /* a stop string appeared; it is not part of the text */
    QN_STOP_LENGTH,   /* max_tokens were made */
    QN_STOP_CONTEXT,  /* the context is full */
    QN_STOP_CALLBACK, /* on_text or on_token returned false */
    QN_STOP_CANCELLED /* qn_session_cancel */
} qn_stop_reason;

typedef struct qn_generate_params {
    qn_sampling sampling;
    int64_t max_tokens;      /* < 0: until something else stops it */
    bool ignore_end;         /* go on past end tokens, as benchmarks want */
    const char *const *stop; /* [n_stop] strings at which to stop */
    size_t n_stop;
    bool show_special; /* whether on_text gets the names of special tokens */
    bool (*on_text)(void *user, const char *text,
                    size_t length); /* whole UTF-8 characters; bytes that can no longer become one arrive as U+FFFD */
    bool (*on_token)(void *user, qn_token token);
    void *user;
} qn_generate_params;

typedef struct qn_generate_result {
    qn_stop_reason reason;
    size_t n_prompt;    /* tokens evaluated before the first new one: fewer than were given when cancelled among them */
    size_t n_generated; /* new tokens, an end token included */
    double prompt_seconds;
    double generate_seconds;
} qn_generate_result;

/* qn_generate_defaults - default sampling, no limit, no stop strings, no callbacks. */
QN_API qn_generate_params qn_generate_defaults(void);

/* qn_generate - evaluate `tokens` after what the session holds, then generate until something stops it.
 *
 *   tokens   [n], n >= 1: the prompt, or the last token if the session holds all before it
 *   result   may be NULL
 *
 * Afterwards the session holds the prompt and every generated token but the last, which was not evaluated: that token is the
 * first to pass to the next call when a conversation goes on, and qn_session_pending knows it. Two cases differ: cancelled
 * within the prompt, it holds the n_prompt tokens that were evaluated; with max_tokens 0 it holds the whole prompt and nothing
 * is pending. Tokens that spelled a stop string are held too. Being stopped is success: see result->reason. */
QN_API qn_status qn_generate(qn_session *session, const qn_token *tokens, size_t n, const qn_generate_params *params,
                             qn_generate_result *result);

/* qn_generate_text - qn_tokenize (special tokens parsed, beginning-of-text as the model asks) and qn_generate. */
QN_API qn_status qn_generate_text(qn_session *session, const char *prompt, const qn_generate_params *params,
                                  qn_generate_result *result);

/* ---- Files ---- */

typedef struct qn_quantize_params {
    int n_threads; /* 0: physical cores */
    qn_progress_fn on_progress;
    qn_log_fn on_log; /* one line for each tensor that keeps a wider type, and why */
    void *user;
} qn_quantize_params;

/* qn_quantize_file - rewrite a GGUF file with its matrices in another type.
 *
 *   type   "f16" "bf16" "q8_0" "q4_0" "q4_1" "q1_0" "q2_0" "pq2_0" "ptq1_0" "tq1_0" "tq2_0"
 *
 * Tensors of one dimension stay f32. A matrix whose rows do not fit the type's block keeps a wider type, and the log says so.
 * Written beside the target under a temporary name and renamed when whole: a full disk, an error or a stop leaves the target as
 * it was. `in` may be one file of a split model: all are read, and one is written. `in` and `out` may be the same file, and
 * `out` one of a split model's: the whole new model then takes the place of that one. */
QN_API qn_status qn_quantize_file(const char *in, const char *out, const char *type, const qn_quantize_params *params);

#ifdef __cplusplus
}
#endif
#endif
