/* quern: inference of 1-bit and ternary language models from C.
 *
 * A model (qn_model) is loaded once and shared. A session (qn_session) is one sequence of tokens with its state: the KV
 * cache and, for models with Gated DeltaNet layers, the recurrent state. Tokens go in, logits or text come out.
 *
 *     qn_model *model;
 *     qn_session *session;
 *     if (qn_model_load("model.gguf", NULL, &model) || qn_session_create(model, NULL, &session))
 *         return fprintf(stderr, "%s\n", qn_error_text()), 1;
 *     qn_request_params request = QN_REQUEST_PARAMS_INIT;
 *     request.text = "Once upon a time";
 *     request.on_text = print_text;
 *     qn_generate(session, &request, NULL);
 *     qn_session_free(session);
 *     qn_model_free(model);
 *
 * Every struct that a caller fills begins with its size. Its initialiser sets the size and the defaults of all other
 * members (QN_MODEL_PARAMS_INIT for qn_model_params, and so on). A program compiled with an older header passes a
 * smaller struct: members missing from it have their defaults. A larger struct may contain only zeros after the members
 * that the library knows. A size of 0 and non-zero unknown members are QN_ERR_INVALID. A struct that the library fills
 * also has a size when the caller provides the struct: the library fills members up to that size.
 *
 * Errors: a function that returns qn_status does not write its outputs when it fails, or sets output pointers to NULL;
 * exceptions are stated. qn_error_text() returns the reason.
 *
 * Threads: any number of threads may use one qn_model. Evaluations of its sessions are serialised, batch by batch: each
 * uses the model's whole thread team or its GPU. A qn_session may be used by one thread at a time; qn_session_cancel is
 * the exception. To evaluate many sequences together, use quern/scheduler.h.
 *
 * A callback of a session must not change or free that session: qn_session_eval, qn_session_eval_rows,
 * qn_session_truncate, qn_session_truncate_to, qn_session_truncate_to_rows, qn_session_checkpoint and qn_generate
 * return QN_ERR_INVALID there, and qn_session_free does nothing. It may call every other function.
 *
 * Processes: a model, its sessions, schedulers and grammars belong to the process that created them. In a forked child
 * their threads do not exist and their locks may stay held forever. Functions that need a thread or a lock return
 * QN_ERR_INVALID in the child, and functions that free or cancel do nothing. Functions that only read constant data
 * still work: text, tokens, templates and properties of the model. A child may load its own model, but only on the CPU
 * if the parent has used a GPU.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUERN_QUERN_H
#define QUERN_QUERN_H

#include "quern/output.h"
#include "quern/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qn_model qn_model;
typedef struct qn_session qn_session;
typedef int32_t qn_token; /* a token id: an index into the vocabulary, from 0 */

/* qn_version - the version of the library, "major.minor.patch". A static string. */
QN_API const char *qn_version(void);

/* ---- Model ---- */

/* Progress of a long operation. Called repeatedly on the thread that called the operation, while the library holds no
 * lock. A session's callback may call what the callbacks of that session may call (above).
 *
 *   user    the pointer given together with the callback
 *   done    work finished so far, in units of the operation: bytes of tensors, or tokens
 *   total   all work, in the same units
 *
 * Return true to continue. Return false to stop: the operation then fails with QN_ERR_CANCELLED. */
typedef bool (*qn_progress_fn)(void *user, size_t done, size_t total);

/* Receives a log message: one line without a trailing newline ("type 42 holds groups of 128"), valid during the
 * call. */
typedef void (*qn_log_fn)(void *user, const char *line);

/* Where drafted tokens come from (speculative decoding): tokens that may follow the text, which a step evaluates
 * together with the last one. Only the tokens that one-by-one sampling gives after the same rows are kept: on the CPU
 * and on a deterministic GPU answers are the same, to the bit, in fewer steps (docs/speculation.md). On other GPUs,
 * steps of other numbers of rows round differently. */
typedef enum qn_draft_kind {
    QN_DRAFT_AUTO,  /* drafters that are there, where measurements show a gain: on the CPU QN_DRAFT_NGRAM, and
                       that of the file draft_model, else QN_DRAFT_MTP if the model has it; on a GPU that of
                       draft_model, else QN_DRAFT_MTP if the model was loaded with it */
    QN_DRAFT_OFF,   /* none */
    QN_DRAFT_NGRAM, /* tokens that followed the end of the text earlier: in the prompt and the answer, and in answers of
                       a scheduler's earlier requests of the same scope, if that is not "" (strangers may share it) and
                       the scheduler keeps prefixes */
    QN_DRAFT_MTP,   /* a block for multi-token prediction, the model's own or that of the file draft_model, on the CPU
                       and on CUDA devices; QN_ERR_UNSUPPORTED, with the reason, where there is none that can be used */
    QN_DRAFT_DFLASH, /* a block drafter that the model was loaded with (qn_model_params.draft_model), on the CPU and on
                        CUDA devices; QN_ERR_UNSUPPORTED where it was loaded without one */
    QN_DRAFT_MODEL   /* what the draft model of the model (qn_model_params.draft_model) finds likeliest */
} qn_draft_kind;

typedef struct qn_model_params {
    size_t size;        /* set by QN_MODEL_PARAMS_INIT */
    const char *device; /* "auto" or NULL: the first CUDA GPU if it can run the model, else a discrete Vulkan GPU if
                           that can, else the CPU; "cpu"; "cuda" or "cuda:N", the GPU with index N, from 0; "vulkan" or
                           "vulkan:N". A CUDA GPU whose driver fails is an error, also with "auto" */
    int n_threads;      /* CPU threads, at most 1024; 0: one per core, or as many as a quota pays for */
    /* Bytes for the caches and states of all sessions and schedulers together, at least 2 MiB. 0: on the CPU, half of
     * the memory available besides the weights; on a GPU, nine tenths of the memory free when the first session is
     * created. */
    uint64_t memory;
    const char *chat_template; /* source of a chat template to use instead of the file's; NULL: the file's */
    bool vocab_only; /* load the tokeniser only: the file may have no tensors, and the model cannot have sessions */
    bool skip_weight_scan; /* do not scan the weights for infinities and NaN */
    /* On a GPU, a sequence of a scheduler gets the same bits whatever other sequences are evaluated with it, also when
     * a cached prefix is reused. Decoding then always uses the multi-row kernels, at most 8 tokens at a time if a
     * matrix has weights of 4 or more bits, and prompts are evaluated 64 tokens at a time, which is slower. The CPU is
     * always deterministic. */
    bool deterministic;
    qn_progress_fn on_progress; /* called while the weights are scanned, in bytes; NULL: none */
    /* Receives messages while the model is loaded. On a GPU, also later, on any thread that uses the model, when a
     * kernel has to be compiled. NULL: none. */
    qn_log_fn on_log;
    void *user; /* passed to both callbacks; must outlive the model if on_log is set */
    /* Whether the model is loaded with its block for multi-token prediction, which takes some memory and, in each step,
     * a little time. QN_DRAFT_AUTO: on the CPU, if it has one; steps leave it out where its drafts do not pay; a block
     * that cannot be used is named in the log. QN_DRAFT_MTP: a model that cannot have it is not loaded:
     * QN_ERR_UNSUPPORTED. All others: without it.
     * QN_DRAFT_DFLASH: the same for draft_model. */
    qn_draft_kind draft;
    /* The GGUF file of a drafter for this model (docs/speculation.md), on the CPU or a CUDA device: a small model with
     * the same vocabulary (QN_DRAFT_MODEL), whose caches take a part of `memory`; a block drafter of the architecture
     * dflash (QN_DRAFT_DFLASH), on a GPU for caches of f16 and without a Markov head; or a block for multi-token
     * prediction alone (QN_DRAFT_MTP), as qn_graft_mtp would join it. On the CPU it runs on the same threads. The
     * model's own block is then not used. NULL: none. QN_ERR_UNSUPPORTED, QN_ERR_INVALID or QN_ERR_FORMAT, with the
     * reason, if it cannot serve this model. */
    const char *draft_model;
} qn_model_params;
#define QN_MODEL_PARAMS_INIT QN_INIT(qn_model_params)

/* qn_model_load - Maps a GGUF file, validates it and prepares the model for inference.
 *
 *   path     the file; for a split model (PREFIX-00001-of-00003.gguf ..., as written by llama.cpp's gguf-split) any of
 *            its files
 *   params   NULL for the defaults
 *   out      the model; free it with qn_model_free
 *
 * All files of a split model must be in one directory. Keys and vocabulary are copied. Before the function returns,
 * weights are packed for the CPU or copied to the GPU; weights that need neither stay mapped. So the files must not
 * change while the model exists: overwriting a file changes the results, truncating it ends the program with SIGBUS.
 * Replacing a file by rename is harmless.
 *
 * A file without a tokeniser ("no_vocab") loads. So does one whose tokeniser is not supported, except with vocab_only.
 * Functions that need text then fail with QN_ERR_UNSUPPORTED and name the tokeniser.
 *
 * QN_ERR_IO            a file cannot be read, or changed while it was read; or files of a split model are missing: the
 *                      text names them
 * QN_ERR_FORMAT        a file is damaged, or a weight is infinite or NaN
 * QN_ERR_UNSUPPORTED   the architecture, a tensor type, the tokeniser (with vocab_only) or the device is not supported
 * QN_ERR_INVALID       params has a value outside its range or an unknown device name, or chat_template is not a
 *                      template
 * QN_ERR_MEMORY        not enough memory on the host or on the GPU
 * QN_ERR_DEVICE        the driver of the GPU reported an error; every function that uses the GPU may return this
 * QN_ERR_CANCELLED     on_progress returned false */
QN_API qn_status qn_model_load(const char *path, const qn_model_params *params, qn_model **out);

/* qn_model_free - Frees a model. Its sessions and schedulers must have been freed before, and no other thread may use
 * the model any more. NULL is allowed. Does nothing in a callback of one of its schedulers, and in a forked child,
 * where another thread may have left the model half changed. */
QN_API void qn_model_free(qn_model *model);

typedef struct qn_model_info {
    const char *name;         /* general.name of the file, or "" */
    const char *architecture; /* general.architecture: "qwen3"; "" with vocab_only */
    const char *quantisation; /* the type of most weights: "q1_0"; "" with vocab_only */
    uint32_t n_vocab;         /* rows of the logits; with vocab_only, tokens of the tokeniser */
    uint32_t n_layers;
    uint32_t n_embd;          /* width of the hidden state */
    uint32_t n_ctx_train;     /* context length used in training, in tokens */
    uint64_t n_params;        /* weights in all tensors */
    uint64_t file_bytes;      /* size of the file, or of all files of a split model */
    uint64_t bytes_per_token; /* bytes of weights read to decode one token; excluding the KV cache and the state */
    uint64_t cache_bytes_per_position; /* bytes of f16 KV cache per token of context, in all layers */
    uint64_t recurrent_bytes; /* bytes of recurrent state, independent of the context length: on the CPU read for
                                 every token and written for every 64th; 0 if the model has no recurrent layers */
    int n_threads;            /* threads of the team; 0 with vocab_only */
    const char *cpu;          /* instruction set used on the CPU: "avx512" */
    const char *device;       /* "cpu", "cuda:0"; "" with vocab_only */
    const char *tokeniser;    /* "gpt2/qwen2"; "" if the file has no tokeniser that quern supports */
    qn_token bos, eos;        /* tokens of the beginning and of the end of text; -1: there is none */
    bool adds_bos, adds_eos;  /* texts begin with bos; texts of embeddings end with eos */
} qn_model_info;

/* qn_model_get_info - Returns the properties of a model. Owned by the model: they do not change, and stay valid until
 * it is freed. Later versions add members at the end. */
QN_API const qn_model_info *qn_model_get_info(const qn_model *model);

/* The tokens between which models of code fill a gap: prefix, the text before it, suffix, the text after it, middle;
 * the model continues with the text of the gap. Texts of other files may come first: repository, its name, and for each
 * file file_separator, its name and text. Bavarian et al., Efficient Training of Language Models to Fill in the Middle
 * (2022); the last two as Qwen2.5-Coder. */
typedef struct qn_infill_tokens {
    qn_token prefix, suffix, middle;
    qn_token repository, file_separator; /* -1: there is none */
} qn_infill_tokens;

/* qn_model_get_infill - Returns the tokens for filling gaps, from the file's keys or the usual names; NULL if the
 * vocabulary does not have the first three. Owned by the model. */
QN_API const qn_infill_tokens *qn_model_get_infill(const qn_model *model);

/* ---- Text ---- */

/* qn_tokenize - Converts text to token ids.
 *
 *   text            [length] bytes, valid UTF-8 or not; no terminator needed
 *   length          in bytes
 *   parse_special   true: special tokens spelled in the text ("<|im_end|>") become their ids; pass false for untrusted
 *                   text. User-defined tokens ("</think>" and "<tool_call>" in some vocabularies) always become their
 *                   ids: use qn_conversation_tokens for messages
 *   add_bos         true: put the beginning-of-text token first, if the model uses one
 *   tokens          [*count] the ids; free with qn_free_tokens. Empty text gives a valid pointer and a count of 0
 *   count           number of ids
 *
 * SentencePiece models put a space before the text, and after special tokens in it, if their file does not say
 * otherwise; the bytes of the tokens have it.
 *
 * QN_ERR_UNSUPPORTED   the model has no supported tokeniser
 * QN_ERR_MEMORY        not enough memory */
QN_API qn_status qn_tokenize(const qn_model *model, const char *text, size_t length, bool parse_special, bool add_bos,
                             qn_token **tokens, size_t *count);

/* qn_least_tokens - Returns a number of tokens that every text of this many bytes has at least, without tokenising it:
 * its bytes by those of the longest token. A text whose least number exceeds a context need not be tokenised to be
 * refused. 0 if the model has no tokeniser, or one without such a bound (SentencePiece, and vocabularies that lack
 * bytes). */
QN_API size_t qn_least_tokens(const qn_model *model, size_t length);

/* qn_free_tokens - Frees the tokens of qn_tokenize, qn_chat_tokens or qn_dry_breakers. NULL is allowed. */
QN_API void qn_free_tokens(qn_token *tokens);

/* qn_token_piece - Returns the bytes of one token, which may end or begin inside a UTF-8 character. For a special
 * token, the bytes are its name ("<|im_end|>").
 *
 *   token    an id of the tokeniser's vocabulary, else QN_ERR_INVALID
 *   bytes    [*length] owned by the model, without a terminator
 *   length   in bytes
 *
 * QN_ERR_UNSUPPORTED if the model has no supported tokeniser. */
QN_API qn_status qn_token_piece(const qn_model *model, qn_token token, const char **bytes, size_t *length);

/* qn_token_is_special - Returns true for a control token, which is not displayed; false for an id outside the
 * vocabulary. */
QN_API bool qn_token_is_special(const qn_model *model, qn_token token);

/* qn_token_is_end - Returns true if the token ends generation (end of text, end of turn); false for an id outside the
 * vocabulary. */
QN_API bool qn_token_is_end(const qn_model *model, qn_token token);

/* Properties of the model's chat template, detected from its source and from test renders. Strings are never NULL. */
typedef struct qn_chat_format {
    const char *source;  /* where the template comes from: "file", "given" (qn_model_params.chat_template) or "chatml"
                            (the file has none); "" if no template can be used */
    const char *problem; /* why no template can be used; "" if one can */
    /* Format of its tool calls: "json", "xml" or "llama3"; "" if the template does not support tools; "unknown" if it
     * does but quern cannot parse its calls: requests with tools are then refused (docs/tool-calls.md). */
    const char *tool_calls;
    const char *think_open, *think_close; /* delimiters of reasoning: "<think>" and "</think>"; "" if it has none */
    bool has_enable_thinking;             /* it reads enable_thinking, which switches thinking on and off */
    bool has_reasoning_effort;            /* it reads reasoning_effort */
    const char *const *efforts; /* [n_efforts] levels of reasoning_effort that it knows, lowest first; empty if it
                                   prints any level unchanged */
    size_t n_efforts;
    const char *text; /* the template itself; "" if no template can be used */
} qn_chat_format;

/* qn_model_get_chat_format - Returns the properties of the model's chat template. Owned by the model, like the result
 * of qn_model_get_info.
 *
 * Levels of reasoning_effort are none, minimal, low, medium, high, xhigh and max. A conversation may use any of them. A
 * level that the template does not know is replaced by the next higher level that it knows, else by the next lower. */
QN_API const qn_chat_format *qn_model_get_chat_format(const qn_model *model);

typedef struct qn_chat_message {
    const char *role;    /* "system", "user" or "assistant" */
    const char *content; /* UTF-8 */
} qn_chat_message;

/* qn_chat_tokens - Converts a conversation to tokens in the model's chat format.
 *
 *   messages        [n] in order. Special tokens spelled in roles and contents are not parsed
 *   n               number of messages
 *   add_assistant   true: append the header of the assistant's next turn
 *   tokens          as for qn_tokenize
 *   count           as for qn_tokenize
 *
 * Equivalent to qn_conversation_tokens with {"messages": [...], "add_generation_prompt": add_assistant} and the current
 * time.
 *
 * QN_ERR_UNSUPPORTED   no chat template can be used; the text has the reason
 * QN_ERR_INVALID       a role or content is NULL, or the template raises an exception; the error text is the
 *                      exception's */
QN_API qn_status qn_chat_tokens(const qn_model *model, const qn_chat_message *messages, size_t n, bool add_assistant,
                                qn_token **tokens, size_t *count);

/* qn_conversation_text - Renders a conversation with the model's chat template.
 *
 *   conversation   [length] JSON: an object with `messages` and optionally `tools`, `add_generation_prompt`,
 *                  `enable_thinking`, `reasoning_effort` and any other variable of the template. Messages are objects
 *                  as for transformers' apply_chat_template: role, content (text or parts), tool_calls (arguments as
 *                  objects), reasoning_content. bos_token and eos_token given here replace the vocabulary's; tools and
 *                  documents are `none` if missing. With `continue_final_message` true the text ends with the content
 *                  of the last message, which must be the assistant's, so that the answer continues it. The depth is at
 *                  most 256, and no object may have a key twice
 *   now            seconds since 1970, for templates that print the date; negative: the current time
 *   text           [*text_length] and a terminator; free with qn_free_text
 *
 * Templates are Jinja and run under the limits listed in docs/chat-templates.md. If the file has no template, ChatML is
 * used, provided that the vocabulary has ChatML's tokens.
 *
 * QN_ERR_UNSUPPORTED   no chat template can be used, or there is no tokeniser; the text has the reason
 * QN_ERR_INVALID       the JSON is not as described; the template raises an exception, whose text is the error text;
 *                      the template fails or exceeds a limit: the text has the line and expression; or the last message
 *                      cannot be continued */
QN_API qn_status qn_conversation_text(const qn_model *model, const char *conversation, size_t length, int64_t now,
                                      char **text, size_t *text_length);

/* qn_free_text - Frees the text of qn_conversation_text. NULL is allowed. */
QN_API void qn_free_text(char *text);

/* qn_conversation_tokens - Renders a conversation as qn_conversation_text does and returns the tokens of the text.
 * Special tokens spelled by the template become their ids; special tokens spelled in the conversation do not.
 *
 *   conversation, length, now   as for qn_conversation_text
 *   tokens, count               as for qn_tokenize
 *
 * Errors are those of qn_conversation_text. */
QN_API qn_status qn_conversation_tokens(const qn_model *model, const char *conversation, size_t length, int64_t now,
                                        qn_token **tokens, size_t *count);

/* qn_conversation_count - Returns the number of tokens that qn_conversation_tokens would return, without allocating
 * them. Errors are the same. */
QN_API qn_status qn_conversation_count(const qn_model *model, const char *conversation, size_t length, int64_t now,
                                       size_t *count);

/* ---- Session ---- */

typedef struct qn_session_params {
    size_t size;    /* set by QN_SESSION_PARAMS_INIT */
    uint32_t n_ctx; /* most tokens; 0: the context length used in training or qn_capacity.tokens_per_sequence, whichever
                       is less. The same rule holds for schedulers, the program and the server */
    uint32_t n_batch; /* tokens per prefill batch, 1 to 4096; 0: 128 on the CPU, 256 with AMX, 2048 on a GPU. Affects
                         memory and speed; on the CPU it does not affect results */
    const char *kv;   /* format of the KV cache: NULL or "f16"; "f32", which rounds nothing, for comparisons, on the CPU
                         only; or AURA codes of the named number of bits: "aura8", "aura6", "aura4", "aura3", "aura2";
                         "aura4v3" and "aura4v2" have 4 bits for keys and 3 or 2 for values */
    uint32_t n_checkpoints; /* checkpoints kept, 1 to 64; 0: 4 */
    qn_log_fn on_log;       /* reports a cache format that differs from `kv`, and in qn_generate that hardly any drafted
                               token is accepted; NULL: none */
    void *user;             /* passed to on_log; must outlive the session if on_log is set */
} qn_session_params;
#define QN_SESSION_PARAMS_INIT QN_INIT(qn_session_params)

/* qn_session_create - Creates an empty session.
 *
 *   model    must outlive the session
 *   params   NULL for the defaults
 *   out      the session; free it with qn_session_free
 *
 * The cache takes pages of 64 tokens from the memory of sessions (qn_model_params.memory) as it grows, and returns
 * them. AURA codes require heads of 64, 80, 96, 128, 192, 256 or 512 elements, and biases of queries, keys and values
 * not much larger than the values that they are added to (docs/aura.md). Otherwise the cache is f16 in all layers, and
 * on_log reports it.
 *
 * QN_ERR_INVALID       params has a value outside its range, or the model was loaded with vocab_only
 * QN_ERR_UNSUPPORTED   unknown cache format
 * QN_ERR_MEMORY        not enough memory on the host or on the GPU */
QN_API qn_status qn_session_create(qn_model *model, const qn_session_params *params, qn_session **out);

/* qn_kv_check - Checks the name of a KV cache format (qn_session_params.kv). QN_ERR_UNSUPPORTED for an unknown name;
 * the text lists the known ones. */
QN_API qn_status qn_kv_check(const char *kv);

/* How much context fits in the memory of sessions (qn_model_params.memory). */
typedef struct qn_capacity {
    size_t size;                  /* set by QN_CAPACITY_INIT */
    uint64_t memory_limit;        /* bytes of caches and states of all sessions and schedulers */
    uint64_t bytes_per_position;  /* of the cache, in all layers; with AURA codes, in complete pages */
    uint64_t bytes_per_sequence;  /* of recurrent state, and with AURA codes also of two f16 pages; independent of the
                                     length */
    uint64_t tokens_per_sequence; /* most tokens of each sequence when all have the same length; 0: not all sequences
                                     fit */
} qn_capacity;
#define QN_CAPACITY_INIT QN_INIT(qn_capacity)

/* qn_model_get_capacity - Computes how many tokens of context fit in memory.
 *
 *   kv            format of the KV cache, as in qn_session_params
 *   n_sequences   at least 1: sequences of the same length that share nothing. Checkpoints and forks take additional
 *                 memory
 *   capacity      the caller sets its size; all other members are written
 *
 * Memory that sessions and schedulers hold now is not subtracted. On a GPU the first session, scheduler or call of this
 * function fixes the memory limit.
 *
 * QN_ERR_INVALID       n_sequences is 0, or the model was loaded with vocab_only
 * QN_ERR_UNSUPPORTED   unknown cache format
 * QN_ERR_MEMORY        not enough memory for an empty session */
QN_API qn_status qn_model_get_capacity(qn_model *model, const char *kv, uint32_t n_sequences, qn_capacity *capacity);

/* qn_session_free - Frees a session. NULL is allowed. Does nothing while a call uses the session, so in a callback of
 * it, and in a forked child; qn_error_text then has the reason. */
QN_API void qn_session_free(qn_session *session);

/* qn_session_length - Returns the number of tokens in the session. */
QN_API uint32_t qn_session_length(const qn_session *session);

/* qn_session_capacity - Returns n_ctx: the most tokens that the session can hold. */
QN_API uint32_t qn_session_capacity(const qn_session *session);

/* qn_session_tokens - Returns the tokens in the session, [qn_session_length]; -1 for a row with an embedding. Owned by
 * the session, valid until it changes. */
QN_API const qn_token *qn_session_tokens(const qn_session *session);

/* qn_session_truncate - Drops all tokens after the first `length`.
 *
 *   length   at most qn_session_length, else QN_ERR_INVALID
 *
 * Models without recurrent layers: any length. With a cache of AURA codes, up to 63 tokens are evaluated again, because
 * the f16 values of their page no longer exist. If that fails, the error is returned and the session holds up to 63
 * tokens fewer.
 *
 * Models with recurrent layers, on the CPU: every 64 tokens are folded into the recurrent state, which cannot be
 * undone. A session of n tokens can be truncated to lengths above (n-1)/64*64, which are in its open chunk; to the
 * lengths that the same rule allows for a checkpoint of n tokens; and to 0.
 *
 * Models with recurrent layers, on a GPU: to those of these lengths that drop at most 15 tokens of the session or of a
 * checkpoint, and to 0.
 *
 * Any other length is QN_ERR_UNSUPPORTED: the text lists the possible lengths, and the session is unchanged. So is a
 * length for which rows with embeddings would have to be evaluated again (qn_session_eval_rows).
 * Checkpoints of more than `length` tokens are dropped. QN_ERR_MEMORY if there is no memory to return to a checkpoint:
 * the session is then empty. */
QN_API qn_status qn_session_truncate(qn_session *session, uint32_t length);

/* qn_session_truncate_to - Truncates the session to the longest prefix that it shares with a prompt and that
 * qn_session_truncate accepts as a length. At least the last token of the prompt is left to evaluate.
 *
 *   tokens   [n] the whole prompt, n >= 1
 *   shared   the session's length afterwards: the number of prompt tokens that need no evaluation
 *
 * To continue a conversation with its next turn:
 *
 *     qn_conversation_tokens(model, conversation, length, -1, &tokens, &n);
 *     qn_session_truncate_to(session, tokens, n, &shared);
 *     request.tokens = tokens + shared;
 *     request.n_tokens = n - shared;
 *     qn_generate(session, &request, NULL);
 *
 * Rows that qn_session_eval_rows has appended with an embedding, or with a position that is not their index, are not
 * shared. Errors are those of qn_session_truncate except QN_ERR_UNSUPPORTED. */
QN_API qn_status qn_session_truncate_to(qn_session *session, const qn_token *tokens, size_t n, uint32_t *shared);

/* qn_session_checkpoint - Saves the current length and the pending token (qn_session_pending), so that
 * qn_session_truncate can return to them.
 *
 * For models with recurrent layers, complete pages and the state are shared with the session until it changes them; the
 * open chunk and the open page are copied. Other models need no copy. The session keeps the newest checkpoints, up to
 * qn_session_params.n_checkpoints. qn_session_fork copies checkpoints; qn_session_save does not save them. Does nothing
 * for an empty session. QN_ERR_MEMORY if there is no memory for the copy. */
QN_API qn_status qn_session_checkpoint(qn_session *session);

/* qn_session_reach - Returns the greatest length, at most `length`, that qn_session_truncate accepts; 0 if there is no
 * other. */
QN_API uint32_t qn_session_reach(const qn_session *session, uint32_t length);

/* qn_session_pending - Returns the token that the last qn_generate sampled but did not evaluate. Pass it as the first
 * token of the next call to continue the sequence.
 *
 *   token   written if a token is pending
 *
 * Returns true if a token is pending. Evaluating tokens or truncating to fewer tokens discards it. Truncating to the
 * length of a checkpoint restores the token that was pending there. */
QN_API bool qn_session_pending(const qn_session *session, qn_token *token);

/* qn_session_kv - Returns the format of the session's KV cache ("aura4"). A static string. */
QN_API const char *qn_session_kv(const qn_session *session);

/* qn_session_cache_bytes - Returns the bytes used by `length` tokens: their keys and values, and the state of recurrent
 * layers, which does not depend on the length. In a cache of AURA codes the first 64 tokens and the last length mod 64
 * tokens are f16. */
QN_API uint64_t qn_session_cache_bytes(const qn_session *session, uint32_t length);

/* qn_session_fork - Creates an independent session with the same contents: tokens, KV cache, state, pending token,
 * checkpoints.
 *
 *   out   the new session; free it with qn_session_free
 *
 * Both share the complete pages of the cache and the recurrent state; a session copies a shared part before it changes
 * it. The progress callback and a pending request to cancel are not copied. QN_ERR_MEMORY if there is no memory for the
 * copy. */
QN_API qn_status qn_session_fork(const qn_session *session, qn_session **out);

/* qn_session_save - Writes a session to a file: tokens, KV cache, state, pending token. Checkpoints are not saved.
 *
 * The file is written atomically, under a temporary name that is renamed at the end. Its size is about
 * qn_session_cache_bytes(session, qn_session_length(session)). Because it contains the conversation, its mode is 0600,
 * whatever the umask and the mode of the file that it replaces.
 *
 * QN_ERR_INVALID   `path` exists, is not empty and is not a session file; it is not changed
 * QN_ERR_IO        the file cannot be written */
QN_API qn_status qn_session_save(const qn_session *session, const char *path);

/* qn_session_restore - Creates a session from a file written by qn_session_save. With the same instruction set, its
 * logits are bit-identical to those of the session that was saved.
 *
 *   model    a model with the same hyperparameters and tensors as the saved one, for example from a copy of its file
 *   path     the session file
 *   params   as for qn_session_create, NULL for the defaults. n_ctx may differ from the saved one; 0: the saved one. kv
 *            must be NULL or the saved format
 *   out      the session; free it with qn_session_free
 *
 * A session saved on one device can be restored on another. Files of the previous version can be restored if they were
 * written on the CPU. The file is validated with checksums, sizes and token ids. A file forged with valid checksums can
 * change what the session generates, but cannot corrupt memory.
 *
 * QN_ERR_IO            the file cannot be read
 * QN_ERR_FORMAT        the file is damaged, truncated, or not a session file
 * QN_ERR_UNSUPPORTED   another file version or cache format, or rows that the device does not take or that would have
 *                      to be evaluated again (qn_session_eval_rows)
 * QN_ERR_INVALID       another model, or params has a value outside its range
 * QN_ERR_CONTEXT       n_ctx is too small for the saved tokens
 * QN_ERR_MEMORY        not enough memory */
QN_API qn_status qn_session_restore(qn_model *model, const char *path, const qn_session_params *params,
                                    qn_session **out);

/* The tokens whose logits qn_session_eval computes. */
typedef enum qn_logits { QN_LOGITS_NONE, QN_LOGITS_LAST, QN_LOGITS_ALL } qn_logits;

/* qn_session_eval - Appends tokens and computes the logits of the token after each of them.
 *
 *   tokens   [n] ids inside the vocabulary
 *   n        number of tokens; with 0 nothing happens
 *   which    the tokens whose logits are computed
 *   logits   f32, written: [n_vocab] for QN_LOGITS_LAST, [n, n_vocab] row-major for QN_LOGITS_ALL, not used (may be
 *            NULL) for QN_LOGITS_NONE
 *
 * On the CPU the logits of a token depend neither on how the tokens are split over calls nor on the number of threads:
 * they are bit-identical. On a GPU the same calls give identical bits; a different split changes the results by the
 * rounding error of int8 activations and fp16.
 *
 * QN_ERR_CONTEXT     the tokens do not fit in the context; the session is unchanged
 * QN_ERR_MEMORY      no memory for the cache to grow; tokens of finished batches remain in the session
 * QN_ERR_INVALID     an id is outside the vocabulary, or logits is NULL; the session is unchanged
 * QN_ERR_CANCELLED   by qn_session_cancel or the progress callback. Tokens of finished batches remain in the session,
 *                    and with QN_LOGITS_ALL their logits have been written */
QN_API qn_status qn_session_eval(qn_session *session, const qn_token *tokens, size_t n, qn_logits which, float *logits);

/* Rows: tokens, or embeddings in place of tokens, with their positions and with what is computed of them. Arrays have
 * an element per row, in the order of the sequence. They are the caller's, who keeps them unchanged during the call.
 *
 * A row without a position follows the row before it: all components of its position are the greatest component of that
 * row plus 1, the first row's are 0. Rows of plain text have their index as position. */
typedef struct qn_rows {
    size_t size;                    /* set by QN_ROWS_INIT */
    size_t n;                       /* number of rows */
    const qn_token *tokens;         /* [n] ids inside the vocabulary; not read where a row has an embedding. NULL: all
                                       rows have embeddings */
    size_t n_embd;                  /* width of embeddings and hidden states: qn_model_info.n_embd. Read with them */
    const float *const *embeddings; /* [n] NULL, or [n_embd] finite numbers in place of the token's row of the embedding
                                       matrix, as a vision encoder computes them. NULL: all rows are tokens */
    /* [n] what an embedding is known by afterwards: rows with the same id and position count as equal. For example a
     * hash of the image and of the row's index in it, which is known before the encoder has run. Not read for tokens.
     * NULL: xxHash64 of the embedding. */
    const uint64_t *ids;
    uint32_t n_components;     /* components of each position: 1 to 4; missing ones are equal to the first */
    const uint32_t *positions; /* [n, n_components] row-major, each below 2^30: what rope rotates by. Several components
                                  (temporal, vertical, horizontal: M-RoPE) need a model whose file has
                                  rope.dimension_sections. They change neither the order of rows nor which rows attend
                                  to which. NULL: each row follows the one before it */
    const uint32_t *logit_rows; /* [n_logit_rows] ascending indices of the rows whose logits are computed; NULL: the
                                   last n_logit_rows rows */
    size_t n_logit_rows;
    float *logits; /* [n_logit_rows, n_vocab] row-major f32, written */
    /* [n] NULL, or [n_embd] f32, written: the hidden state of the row, the residual stream after the last layer.
     *   hidden   before the final norm: for MTP heads of DeepSeek and GLM, and other drafters with a norm of their own
     *   normed   after it, the input of the output matrix: for the MTP heads of Qwen3.5, and for embeddings of texts */
    float *const *hidden, *const *normed;
} qn_rows;
#define QN_ROWS_INIT QN_INIT(qn_rows)

/* qn_session_eval_rows - Appends rows; does what qn_session_eval does for tokens alone.
 *
 * A row with an embedding is the token -1 of qn_session_tokens. Its embedding is not kept: a length whose rows would
 * have to be evaluated again, as after truncation of a cache of AURA codes, cannot be truncated to if they include an
 * embedding (qn_session_reach says which can). Rows with embeddings or positions are for the CPU.
 *
 * QN_ERR_CONTEXT, QN_ERR_MEMORY, QN_ERR_CANCELLED as qn_session_eval; logits and hidden states of finished batches have
 * been written then.
 *
 * QN_ERR_INVALID       a token outside the vocabulary, a row with neither token nor embedding, an embedding with NaN or
 *                      infinity, another n_embd than the model's, n_components outside 1 to 4, a position of 2^30 or
 *                      more, logit_rows that are not ascending rows, or logits is NULL; the session is unchanged
 * QN_ERR_UNSUPPORTED   the device does not take such rows, or a position has different components and the model's
 *                      positions have one; the session is unchanged */
QN_API qn_status qn_session_eval_rows(qn_session *session, const qn_rows *rows);

/* qn_session_truncate_to_rows - Does what qn_session_truncate_to does for a prompt of rows: tokens are equal if their
 * ids and positions are, embeddings if qn_rows.ids and positions are.
 *
 *   rows     the whole prompt. Embeddings may be absent where ids has an element: a row without a token (-1) is then an
 *            embedding. Logits and hidden states are not read
 *   shared   as for qn_session_truncate_to */
QN_API qn_status qn_session_truncate_to_rows(qn_session *session, const qn_rows *rows, uint32_t *shared);

/* ---- Embeddings of texts ---- */

/* How the hidden states of a text's tokens, after the final norm, become one vector. The numbers are those of GGUF's
 * pooling_type. */
typedef enum qn_pooling {
    QN_POOLING_NONE, /* no vector */
    QN_POOLING_MEAN, /* the mean of all tokens */
    QN_POOLING_CLS,  /* the first token */
    QN_POOLING_LAST, /* the last token */
    QN_POOLING_RANK  /* no vector but one number, the score that qn_rank computes: of requests alone
                        (qn_request_params.pooling) */
} qn_pooling;

/* qn_model_get_pooling - Returns the pooling that the model's file names, as the files of embedding models do;
 * QN_POOLING_NONE if it names none, or that of a reranker. Any model has embeddings, with QN_POOLING_LAST for example,
 * but those of a model that was not trained for them compare poorly. */
QN_API qn_pooling qn_model_get_pooling(const qn_model *model);

/* qn_model_check_embeddings - Returns QN_OK if the model's device computes embeddings, else QN_ERR_UNSUPPORTED. */
QN_API qn_status qn_model_check_embeddings(const qn_model *model);

/* qn_embedding_tokens - Converts a text to the tokens of which an embedding is computed. Does what qn_tokenize does
 * with parse_special and add_bos, and appends the end of text if the file has tokenizer.ggml.add_eos_token. */
QN_API qn_status qn_embedding_tokens(const qn_model *model, const char *text, size_t length, qn_token **tokens,
                                     size_t *count);

/* qn_embed - Computes the embedding of a text. The session is emptied first, and holds the tokens afterwards. A
 * scheduler computes embeddings between the steps of other requests (qn_request_params.pooling).
 *
 *   tokens      [n] n >= 1
 *   embedding   [qn_model_info.n_embd] f32, written: of length 1 (L2), except that a vector of zeros stays one. On the
 *               CPU bits do not depend on n_batch or the number of threads
 *
 * QN_ERR_INVALID   no tokens, an id outside the vocabulary, or QN_POOLING_NONE
 * QN_ERR_CONTEXT, QN_ERR_MEMORY, QN_ERR_CANCELLED as qn_session_eval */
QN_API qn_status qn_embed(qn_session *session, const qn_token *tokens, size_t n, qn_pooling pooling, float *embedding);

/* ---- Ranking of documents ---- */

/* qn_model_check_ranking - Returns QN_OK if the model and its device rank documents, else QN_ERR_UNSUPPORTED with the
 * reason. Models do that have a head for it: Qwen3-Reranker as llama.cpp converts it. */
QN_API qn_status qn_model_check_ranking(const qn_model *model);

/* qn_ranking_tokens - Makes the prompt that asks a model that ranks documents about one document. The prompt around
 * both texts is the file's. Special tokens spelled in them stay text.
 *
 *   tokens   [*count] free them with qn_free_tokens */
QN_API qn_status qn_ranking_tokens(const qn_model *model, const char *query, size_t query_length, const char *document,
                                   size_t document_length, qn_token **tokens, size_t *count);

/* qn_rank - Computes the score of a document, from 0 to 1: the probability of the first label of the model's head
 * ("yes"). The session is emptied first, and holds the tokens afterwards. A scheduler computes scores between the steps
 * of other requests, of documents of one query from the state after what their prompts share (qn_request_params.pooling
 * with QN_POOLING_RANK).
 *
 *   tokens   [n] of qn_ranking_tokens
 *   score    written. On the CPU bits do not depend on n_batch or the number of threads
 *
 * Errors as qn_embed; QN_ERR_UNSUPPORTED as qn_model_check_ranking. */
QN_API qn_status qn_rank(qn_session *session, const qn_token *tokens, size_t n, float *score);

/* ---- Interruption ---- */

/* qn_session_on_progress - Sets the callback that is called between the batches of a long evaluation. Its counts are
 * tokens. NULL removes it. */
QN_API void qn_session_on_progress(qn_session *session, qn_progress_fn on_progress, void *user);

/* qn_session_cancel - Stops the session's current evaluation or generation after the current batch, with
 * QN_ERR_CANCELLED or QN_FINISH_CANCELLED; if none is running, the next one.
 *
 * A call that ends before it checks for cancellation completes normally and clears the request to cancel. May be called
 * from any thread and from a signal handler. */
QN_API void qn_session_cancel(qn_session *session);

/* ---- Sampling ---- */

typedef struct qn_sampling {
    size_t size;          /* set by QN_SAMPLING_INIT, and by QN_REQUEST_PARAMS_INIT */
    float temperature;    /* below 1e-6: argmax, the lowest id of equal logits */
    int top_k;            /* keep the k most likely tokens; 0: all */
    float top_p;          /* nucleus sampling: keep the most likely tokens whose probabilities sum to top_p; 1: all */
    float min_p;          /* drop tokens with less than min_p times the probability of the most likely one; 0: none */
    float repeat_penalty; /* logits of recent tokens are divided by it if positive, multiplied by it if negative; 1: off
                           */
    int repeat_last_n;    /* number of most recent tokens that repeat_penalty applies to */
    /* As OpenAI defines them; 0: off. Subtracted from the logit of each token that occurs in the generated text: */
    float frequency_penalty; /* for each occurrence */
    float presence_penalty;  /* once */
    uint64_t seed;           /* the same seed and logits give the same tokens on every host and device */
    /* Keep the tokens with logits of at least the largest minus top_n_sigma standard deviations of the logits; 0: all.
     * Tang et al., Top-nσ: Not All Logits Are You Need (2024). */
    float top_n_sigma;
    /* Locally typical sampling: keep the tokens whose surprisals are closest to the entropy and whose probabilities sum
     * to typical_p; 0 or 1: all. Meister et al., Locally Typical Sampling (2022). */
    float typical_p;
    /* Exclude top choices: with this probability, drop all but the least likely of the tokens whose probability, after
     * all other filters, is at least xtc_threshold; 0: never. As in llama.cpp, from text-generation-webui. */
    float xtc_probability;
    float xtc_threshold; /* above 0.5 no token can be dropped */
    /* DRY penalises tokens that extend a repetition. If the last n tokens occurred earlier in the text and were
     * followed by a token, dry_multiplier * dry_base^(n - dry_allowed_length) is subtracted from the logit of that
     * token, before the other penalties. 0: off, and the next four members are not read. p-e-w, text-generation-webui
     * (2024); as in llama.cpp. */
    float dry_multiplier;
    float dry_base;         /* at least 1 */
    int dry_allowed_length; /* shorter repetitions are not penalised; n - dry_allowed_length is at most 128 */
    int dry_penalty_last_n; /* number of last tokens that are searched; -1: all, 0: off. At most 8192 are searched */
    /* [n_dry_breakers] sequences of tokens that no repetition extends across, each followed by -1. The token of a
     * sequence of length one is not penalised. qn_dry_breakers makes sequences from texts. */
    const qn_token *dry_breakers;
    size_t n_dry_breakers; /* tokens of all sequences, including each -1 */
    /* Mirostat, version 2, replaces the filters from top_n_sigma to XTC: it drops tokens whose surprisal is above a
     * bound, and adjusts the bound after each token so that the mean surprisal of drawn tokens is mirostat_tau. Basu et
     * al., Mirostat (2021). On the CPU. */
    int mirostat;       /* 0: off, 2: on */
    float mirostat_tau; /* bits; the initial bound is twice this */
    float mirostat_eta; /* how fast the bound follows */
    /* Zeros. Later versions put new members here: the struct is a member of qn_request_params, so its size cannot
     * change. */
    uint64_t reserved[16];
} qn_sampling;
#define QN_SAMPLING_INIT                                                                                               \
    {                                                                                                                  \
        .size = sizeof(qn_sampling), .temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f,                 \
        .repeat_penalty = 1, .repeat_last_n = 64, .typical_p = 1, .xtc_threshold = 0.1f, .dry_base = 1.75f,            \
        .dry_allowed_length = 2, .dry_penalty_last_n = -1, .mirostat_tau = 5, .mirostat_eta = 0.1f                     \
    }

/* qn_sampling_init - Does what QN_SAMPLING_INIT does, for languages without macros. `size` is that of the caller's
 * struct. */
QN_API void qn_sampling_init(qn_sampling *sampling, size_t size);

enum { QN_MAX_DRY_BREAKERS = 64, QN_MAX_DRY_BREAKER_BYTES = 64 };

/* qn_dry_default_breakers - Returns llama.cpp's default breakers, [*n] static texts: a newline, a colon, a quotation
 * mark, an asterisk. */
QN_API const char *const *qn_dry_default_breakers(size_t *n);

/* qn_dry_breakers - Converts texts to the token sequences of qn_sampling.dry_breakers, as llama.cpp does.
 *
 * Each token that contains one of the texts is a sequence. Each token that ends with a prefix of a text is a sequence
 * together with the tokens of the rest of the text. Other tokenisations of a text are not found.
 *
 *   texts      [n] at most QN_MAX_DRY_BREAKERS, each of 1 to QN_MAX_DRY_BREAKER_BYTES bytes
 *   breakers   [*count] free with qn_free_tokens; not NULL on success
 *
 * QN_ERR_INVALID       a text is empty or too long, there are too many texts, or the result would have more than four
 *                      times as many tokens as the vocabulary
 * QN_ERR_UNSUPPORTED   the model has no supported tokeniser */
QN_API qn_status qn_dry_breakers(const qn_model *model, const char *const *texts, size_t n, qn_token **breakers,
                                 size_t *count);

/* A value that is added to the logit of a token. */
typedef struct qn_logit_bias {
    qn_token token;
    float value; /* finite, or -inf */
} qn_logit_bias;

enum { QN_MAX_LOGPROBS = 20 };

/* Natural logarithms of probabilities: the log softmax of the logits as the model computed them, before mask, bias,
 * penalties, temperature and filters: the default of vLLM and of llama.cpp's server. If a logit is NaN or the largest
 * logit is infinite, no tokens are listed and `chosen` is NaN. The same logits give the same bits on every device. */
typedef struct qn_logprobs {
    uint32_t n;   /* number of most likely tokens listed, at most QN_MAX_LOGPROBS and the size of the vocabulary */
    float chosen; /* of the sampled token, which need not be listed */
    qn_token tokens[QN_MAX_LOGPROBS];
    float values[QN_MAX_LOGPROBS]; /* descending; of equal values the lower id first */
} qn_logprobs;

/* A sampler: its parameters and the state of its random number generator. One thread at a time. */
typedef struct qn_sampler qn_sampler;

/* qn_sampler_create - Creates a sampler.
 *
 *   params    copied, with the breakers
 *   n_vocab   number of logits, 1 to INT32_MAX
 *   out       the sampler; free it with qn_sampler_free
 *
 * QN_ERR_INVALID, naming the field, unless all values are finite, temperature >= 0, top_k >= 0, top_p in (0, 1], min_p
 * in [0, 1), repeat_penalty in [0.001, 1000], repeat_last_n >= 0, frequency_penalty and presence_penalty in [-2, 2],
 * top_n_sigma >= 0, typical_p, xtc_probability and xtc_threshold in [0, 1], dry_multiplier in
 * [0, 1e6], dry_base in [1, 1e6], dry_allowed_length in [0, 1000], dry_penalty_last_n >= -1, each of dry_breakers of 1
 * to QN_MAX_DRY_BREAKER_BYTES tokens, mirostat 0 or 2, mirostat_tau and mirostat_eta in [0, 100]. */
QN_API qn_status qn_sampler_create(const qn_sampling *params, size_t n_vocab, qn_sampler **out);

/* qn_sampler_free - Frees a sampler. NULL is allowed. */
QN_API void qn_sampler_free(qn_sampler *sampler);

/* qn_sampler_pick - Samples the next token, in this order: DRY, repeat_penalty, frequency_penalty and presence_penalty,
 * top_n_sigma, top_k, temperature, typical_p, top_p, min_p, XTC, random draw.
 *
 *   logits     [n_vocab] f32, not changed. A logit of -inf excludes its token. QN_ERR_INVALID for a NaN, or if the
 *              largest logit is infinite
 *   recent     [n_recent] the preceding tokens, oldest first. repeat_penalty applies to the last repeat_last_n of them;
 *              frequency_penalty and presence_penalty apply to the tokens after the first n_recent of the sampler's
 *              first call: these are the generated text if every call passes all preceding tokens
 *   n_recent   0 is allowed, with recent NULL
 *   token      the sampled id */
QN_API qn_status qn_sampler_pick(qn_sampler *sampler, const float *logits, const qn_token *recent, size_t n_recent,
                                 qn_token *token);

/* ---- Requests ---- */

/* Why an answer ended. */
typedef enum qn_finish {
    QN_FINISH_STOP,      /* an end token, one of stop_tokens or a stop string */
    QN_FINISH_LENGTH,    /* max_tokens tokens were generated */
    QN_FINISH_CONTEXT,   /* the context is full */
    QN_FINISH_CALLBACK,  /* on_token, on_text or on_event returned false */
    QN_FINISH_CANCELLED, /* qn_session_cancel, the session's progress callback, qn_scheduler_cancel or qn_scheduler_free
                          */
    QN_FINISH_DEADLINE,  /* the deadline has passed */
    QN_FINISH_ERROR,     /* an error: see `status` and `error` */
    QN_FINISH_WITHDRAWN  /* the request had not begun when the scheduler was closed (qn_scheduler_close) */
} qn_finish;

/* How a request ended. on_end receives a struct of the library; qn_generate fills the caller's. */
typedef struct qn_request_result {
    size_t size; /* set by QN_REQUEST_RESULT_INIT */
    qn_finish finish;
    qn_status status;    /* QN_OK unless finish is QN_FINISH_ERROR */
    const char *error;   /* the error's text, or ""; valid during on_end, and after qn_generate as long as qn_error_text
                          */
    bool is_stop_string; /* finish is QN_FINISH_STOP because of a stop string */
    size_t stop_string;  /* with is_stop_string: its index in `stop` */
    size_t n_prompt;     /* tokens of the prompt; from qn_generate, those evaluated: fewer if it was cancelled during
                            prefill */
    size_t n_reused;     /* of n_prompt, tokens found in a cached prefix and not evaluated */
    size_t n_generated;  /* tokens generated, an end token included */
    size_t n_jumped;     /* of n_generated, tokens of forced text that needed no step of their own */
    uint32_t n_set_aside; /* how often the request gave up its memory for other requests; at most 2 */
    uint32_t n_yielded;   /* how often the request gave up its place to a request of another client */
    double queued_seconds, prompt_seconds, generate_seconds; /* until admitted; until the first token is sampled; the
                                                                rest */
    size_t n_drafted;  /* tokens that a drafter proposed and that were evaluated, whether accepted or not */
    size_t n_accepted; /* of n_generated, drafted tokens that needed no step of their own */
} qn_request_result;
#define QN_REQUEST_RESULT_INIT QN_INIT(qn_request_result)

/* Declared in quern/grammar.h. */
typedef struct qn_grammar qn_grammar;

/* Where a grammar begins in an answer. The text before it is unconstrained. */
typedef enum qn_grammar_when {
    QN_GRAMMAR_AT_ONCE,
    /* After the reasoning, if the prompt ends inside reasoning (<think>) or the answer begins with it. At once if the
     * reasoning ended in the prompt, or if the chat template has no reasoning. */
    QN_GRAMMAR_AFTER_REASONING,
    QN_GRAMMAR_AFTER_TEXT, /* after the first occurrence of `text` */
    QN_GRAMMAR_AT_CALL     /* after the delimiter that opens the first tool call outside reasoning: for
                              qn_grammar_create_calls */
} qn_grammar_when;

typedef struct qn_grammar_trigger {
    qn_grammar_when when;
    const char *text; /* zero-terminated UTF-8, 1 to 255 bytes; NULL unless QN_GRAMMAR_AFTER_TEXT */
} qn_grammar_trigger;

/* Whether text that a grammar forces takes fewer steps: its tokens are evaluated together, and only the tokens that
 * one-by-one sampling would have given are kept. Answers are the same (docs/constrained-output.md). */
typedef enum qn_jump_forward {
    QN_JUMP_FORWARD_AUTO, /* where measurements show a gain: on the CPU, when no other request is decoded */
    QN_JUMP_FORWARD_ON,
    QN_JUMP_FORWARD_OFF
} qn_jump_forward;

/* How far a prompt was evaluated. Later versions add members at the end. */
typedef struct qn_prompt_progress {
    size_t n_prompt;         /* its tokens */
    size_t n_reused, n_done; /* of these, found in a cached prefix; found or evaluated so far */
    double seconds;          /* since the request was admitted */
} qn_prompt_progress;

/* A prompt and the options of its answer. qn_generate runs one request on a session; a scheduler (quern/scheduler.h)
 * runs many at once. */
typedef struct qn_request_params {
    size_t size; /* set by QN_REQUEST_PARAMS_INIT */

    /* The prompt, exactly one of: tokens; text; messages in the model's chat format, with the assistant's header
     * appended; or a conversation as for qn_conversation_tokens, optionally with tools and reasoning. */
    const qn_token *tokens; /* [n_tokens] */
    size_t n_tokens;
    const char *text;                /* zero-terminated UTF-8; special tokens in it are parsed */
    const qn_chat_message *messages; /* [n_messages] */
    size_t n_messages;
    const char *conversation; /* [conversation_length] JSON */
    size_t conversation_length;

    qn_sampling sampling;
    const qn_logit_bias *bias; /* [n_bias] added to the logits; if a token occurs twice, both values are added */
    size_t n_bias;
    int n_logprobs;     /* 0 to QN_MAX_LOGPROBS: on_token receives the sampled token's log probability and those of this
                           number of most likely tokens; -1: none */
    int64_t max_tokens; /* most tokens to generate; < 0: limited by the context only */
    /* Number of first tokens that cannot end the answer: end tokens and stop tokens are not sampled, and a stop string
     * completed within them is ordinary text. At most max_tokens. A grammar takes precedence: if it allows only end or
     * stop tokens, one of them ends the answer. <= 0: none. */
    int64_t min_tokens;
    bool ignore_end;             /* continue after end tokens, for benchmarks; a grammar restarts after an end token */
    bool show_special;           /* on_text and on_event receive the names of special tokens */
    const char *const *stop;     /* [n_stop] stop strings, UTF-8, not empty */
    size_t n_stop;               /* with on_event stop strings are matched in content, not in reasoning or calls */
    const qn_token *stop_tokens; /* [n_stop_tokens] these end the answer like end tokens, also with ignore_end */
    size_t n_stop_tokens;

    qn_grammar *grammar; /* constrains the generated text; NULL: any text. End tokens are allowed where the text may
                            end. The request holds a reference */
    qn_grammar_trigger grammar_trigger;
    /* Used with a grammar. Off with mirostat and on a deterministic GPU. */
    qn_jump_forward jump_forward;

    /* Most tokens of reasoning; < 0: no limit. At the limit the library inserts the chat template's end of reasoning
     * ("\n</think>\n\n"), at a character boundary only. Its tokens are not sampled but count as generated: on_token
     * receives them without log probabilities, and `answer` of mask and accepts contains them. No effect if the
     * template has no reasoning. */
    int64_t reasoning_budget;

    /* With on_event: the tools of the prompt, [tools_length] JSON, an array as in a conversation. Without tools, the
     * text of a call is content. A `conversation` contains its own tools. */
    const char *tools;
    size_t tools_length;

    /* For a scheduler; qn_generate does not read marks, scope, client and priority. */

    /* Prompt lengths at which another request may continue differently, such as ends of messages. Recurrent layers keep
     * their state at the last multiple of 64 before each mark. Only with `tokens`: for messages the library sets the
     * marks. */
    const uint32_t *marks; /* [n_marks], ascending, at most n_tokens */
    size_t n_marks;
    const char *scope; /* prefixes are shared within a scope only; NULL: the scope "" */

    /* Name of the client, such as a user or an address; NULL: the client "". Clients share the scheduler evenly: places
     * among the sequences of a step, rows of prompts, and the queue. However many requests one client has, they delay
     * those of another client at most until the end of a step. Requests of one client are admitted by priority. */
    const char *client;
    int priority; /* requests of higher priority are admitted first; waiting raises it by one each second */

    double deadline; /* seconds from now after which the request ends; 0: none. Also read by qn_generate */

    /* The caller's own constraint: which tokens may follow. `answer` is [n], all tokens generated so far.
     *   mask      sets the bits of the tokens that may follow: bit t % 32 of allowed[t / 32]. allowed is [(n_vocab +
     *             31) / 32] words, all zero before the call. If no token with a finite logit is allowed, the request
     *             ends with an error. NULL: all tokens are allowed
     *   accepts   returns true if `token`, sampled from all tokens, may follow. If it returns false, mask is called,
     *             and a token is sampled from the same logits under the mask. NULL: mask is called for each token.
     *             Requires mask
     * Both also decide about end tokens. Not allowed together with a grammar.
     *
     * With accepts, most tokens cost one call and no mask. Greedy answers are the same with and without it. Sampled
     * answers follow the same distribution if top_k, top_p and min_p are off; otherwise these filters see the whole
     * vocabulary first, and only the allowed tokens after a rejection.
     *
     * accepts is called by the thread that runs steps, while all requests and sessions of the model wait: it must
     * return in microseconds, must not block, and must not call functions of the library. mask is called by the same
     * thread as the callbacks below, after all callbacks of earlier tokens. Steps of other requests continue while mask
     * runs, so it may take longer than a step, but other callbacks wait for it. The two are never called at the same
     * time for one request; accepts may run at the same time as on_token, on_text or on_event. They may keep state
     * about the tokens seen: a token that was accepted, or sampled under the mask, is always the next token of
     * `answer`, and n never decreases. */
    bool (*accepts)(void *user, const qn_token *answer, size_t n, qn_token token);
    void (*mask)(void *user, const qn_token *answer, size_t n, uint32_t *allowed);

    /* Callbacks, called in order, by one thread at a time; by the calling thread in qn_generate. A scheduler does not
     * call them within a step: a slow callback delays no request's tokens, but may delay callbacks of other requests.
     * Any may be NULL.
     *   on_token   each generated token, end tokens included, before its text. logprobs is NULL with n_logprobs -1,
     *              else valid during the call
     *   on_text    the generated text, [length] bytes without a terminator, in complete UTF-8 characters. Invalid bytes
     *              are replaced by U+FFFD. Text that may be the beginning of a stop string is held back until later
     *              text decides
     *   on_event   instead of on_text: the answer to a prompt in the model's chat format, parsed into reasoning,
     *              content and tool calls (quern/output.h, docs/tool-calls.md). If the prompt ends inside reasoning,
     *              the answer begins with reasoning. A call that has begun ends before on_end, unless a callback
     *              returned false or there was an error
     *   on_end     called exactly once, last. The library keeps nothing of the request afterwards. Not called after an
     *              error of qn_scheduler_submit, or of qn_generate before its first step
     * on_token, on_text and on_event return false to end the request: only on_end is called after that, with a result
     * that covers what these callbacks received. */
    bool (*on_token)(void *user, qn_token token, const qn_logprobs *logprobs);
    bool (*on_text)(void *user, const char *text, size_t length);
    bool (*on_event)(void *user, const qn_output_event *event);
    void (*on_end)(void *user, const qn_request_result *result);

    /* Called during submission, by the submitting thread. `bytes` is the memory that the request keeps until it ends,
     * for its prompt, lists, tools and grammar; it excludes memory shared with an earlier request of the same
     * submission, generated tokens, pages, and the index for drafts, of at most 1.5 MB while the request runs. Return
     * false to refuse the submission with QN_ERR_BUSY. NULL: not called. */
    bool (*on_memory)(void *user, size_t bytes);

    void *user; /* passed to all callbacks */

    /* Log probabilities of the prompt, for a scheduler; qn_generate refuses them, as does a reasoning_budget.
     *   on_prompt_token     called for each token of the prompt in order, before all other callbacks of the request.
     *                       `index` is its place in the prompt. logprobs is that of this token after the tokens before
     *                       it, valid during the call; NULL for the first token. Returns false to end the request, as
     *                       on_token does. NULL: not called
     *   n_prompt_logprobs   0 to QN_MAX_LOGPROBS: the number of most likely tokens in logprobs; -1: on_prompt_token is
     *                       not called. Not read without on_prompt_token
     * The whole prompt is then evaluated, without a cached prefix, in steps of up to 64 of its rows. */
    int n_prompt_logprobs;
    bool (*on_prompt_token)(void *user, size_t index, qn_token token, const qn_logprobs *logprobs);

    /* The embedding of the prompt, for a scheduler on the CPU; qn_generate refuses it. max_tokens must be 0.
     *   pooling        how it is made of the hidden states; QN_POOLING_NONE: none is computed
     *   on_embedding   called once, before on_end, unless the request ends before its prompt is evaluated. embedding is
     *                  [n], n = qn_model_info.n_embd, valid during the call. It is not normalised. Returns false to end
     *                  the request, as on_token does
     * The mean needs the whole prompt to be evaluated, without a cached prefix. */
    qn_pooling pooling;
    bool (*on_embedding)(void *user, const float *embedding, size_t n);

    /* Progress of the prompt, for a scheduler: called with the tokens found in the cache, then after each step that has
     * evaluated a part of it, before the callbacks of that step's tokens. Not called again for tokens that are
     * evaluated again. `progress` is valid during the call. Returns false to end the request. NULL: not called. */
    bool (*on_progress)(void *user, const qn_prompt_progress *progress);

    /* true: on_token's log probabilities are those of the distribution from which the token was drawn, after mask,
     * bias, penalties, temperature and filters; tokens that these dropped are not listed. On a GPU the host samples
     * such tokens, and steps of a scheduler do not run ahead of them. Under a grammar or a caller's mask, a token that
     * was accepted without a mask has its probability without one. */
    bool logprobs_after;

    /* Drafts. They are made where their tokens are expected to be worth the time of their rows, by the acceptance of
     * this request's tokens and by measured times of steps. There are none with mirostat, a caller's mask, or on a
     * deterministic GPU. QN_DRAFT_AUTO is the scheduler's kind, if it has one.
     *   draft_tokens   most tokens of a draft, up to 15; 0: 15
     *   draft_accept   for benchmarks of models whose text means nothing: above 0, each drafted token is accepted with
     *                  this chance, up to 1, whatever the model samples */
    size_t draft_tokens;
    qn_draft_kind draft;
    float draft_accept;
} qn_request_params;
#define QN_REQUEST_PARAMS_INIT                                                                                         \
    {                                                                                                                  \
        .size = sizeof(qn_request_params), .sampling = QN_SAMPLING_INIT, .n_logprobs = -1, .max_tokens = -1,           \
        .reasoning_budget = -1, .n_prompt_logprobs = -1                                                                \
    }

/* qn_request_params_init - Does what QN_REQUEST_PARAMS_INIT does, for languages without macros. `size` is that of the
 * caller's struct. */
QN_API void qn_request_params_init(qn_request_params *params, size_t size);

/* ---- Generation ---- */

/* qn_generate - Appends a prompt to the session, then generates until the answer ends.
 *
 *   params   its prompt continues the session's tokens: pass the pending token first (qn_session_pending), then new
 *            tokens
 *   result   the caller sets its size; written on success. NULL is allowed
 *
 * Works as a scheduler with only this request, in the session's memory. Afterwards the session holds the prompt and the
 * generated tokens except the last, which has been sampled but not evaluated and is now the pending token. Tokens that
 * spell a stop string are in the session. Two cases differ:
 *
 *   cancelled during prefill   the session holds the first n_prompt tokens of the prompt; no token is pending
 *   max_tokens is 0            the session holds the whole prompt; no token is pending
 *
 * With a grammar, tokens are sampled from the model's distribution restricted to the allowed tokens, and filters apply
 * to these only. As without a grammar, greedy text is the same for any number of threads and any split of the prompt.
 *
 * QN_ERR_CONTEXT       the prompt does not fit in the context; the session is unchanged
 * QN_ERR_INVALID       no prompt, more than one, an id outside the vocabulary, a value outside its range; no token is
 *                      allowed, for example when a grammar is complete and the vocabulary has no end token; on_event
 *                      with on_text, or tools without on_event
 * QN_ERR_UNSUPPORTED   text, events, a budget, stop strings or a grammar are used and the model has no supported
 *                      tokeniser; or the chat template does not support tools, or its calls cannot be parsed back; or a
 *                      drafter that is not there
 * QN_ERR_MEMORY        no memory for the cache to grow. Evaluated tokens stay in the session, as after any error */
QN_API qn_status qn_generate(qn_session *session, const qn_request_params *params, qn_request_result *result);

/* ---- Files ---- */

typedef struct qn_quantize_params {
    size_t size;   /* set by QN_QUANTIZE_PARAMS_INIT */
    int n_threads; /* at most 1024; 0: one per core, or as many as a quota pays for */
    bool force;    /* write weights in a type of 1 or 2 bits that cannot represent them: the model is not usable */
    qn_progress_fn on_progress; /* in bytes of the input's tensors; NULL: none */
    qn_log_fn on_log; /* reports each matrix that keeps a wider type, with the reason, and what force wrote; NULL: none
                       */
    void *user;       /* passed to both callbacks */
} qn_quantize_params;
#define QN_QUANTIZE_PARAMS_INIT QN_INIT(qn_quantize_params)

/* qn_quantize_file - Writes a copy of a GGUF file with its matrices converted to another type.
 *
 *   in       the file; of a split model any of its files: all are read, and one file is written
 *   out      the target; may be the same path as `in`, or a file of the split model, which is then replaced by the new
 *            model
 *   type     "f16" "bf16" "q8_0" "q4_0" "q4_1" "q1_0" "q2_0" "pq2_0" "ptq1_0" "tq1_0" "tq2_0"
 *   params   NULL for the defaults
 *
 * Tensors of one dimension are written as f32. A matrix whose row length is not a multiple of the type's block size
 * gets a wider type, and on_log reports it. Types of 1 and 2 bits are for weights that they represent exactly: binary,
 * ternary or four-valued in groups; ssm_alpha and ssm_beta in 16 or 32 bits, which such models have, stay as they are.
 * Written data is decoded again and compared. The target is written atomically: after
 * any error it is unchanged.
 *
 * QN_ERR_INVALID     unknown type, n_threads outside its range, or without `force` a matrix that the type cannot
 *                    represent
 * QN_ERR_IO          `in` cannot be read or `out` cannot be written
 * QN_ERR_FORMAT      `in` is damaged, or a weight is infinite, NaN or too large for the type
 * QN_ERR_CANCELLED   on_progress returned false */
QN_API qn_status qn_quantize_file(const char *in, const char *out, const char *type, const qn_quantize_params *params);

typedef struct qn_convert_params {
    size_t size;                /* set by QN_CONVERT_PARAMS_INIT */
    int n_threads;              /* at most 1024; 0: one per core, or as many as a quota pays for */
    bool force;                 /* write ordinary weights in a type of 1 or 2 bits: the model is not usable */
    qn_progress_fn on_progress; /* in bytes of the checkpoint's tensors; NULL: none */
    qn_log_fn on_log;           /* reports what was recognised, left out and written in a wider type; NULL: none */
    void *user;                 /* passed to both callbacks */
} qn_convert_params;
#define QN_CONVERT_PARAMS_INIT QN_INIT(qn_convert_params)

/* qn_convert_checkpoint - Writes a GGUF file from a checkpoint of Hugging Face transformers.
 *
 *   folder   has config.json, tokenizer.json, model.safetensors or model.safetensors.index.json with the files it
 *            lists, and optionally tokenizer_config.json, chat_template.jinja, generation_config.json
 *   out      the target
 *   type     of the matrices: "f32" or a type of qn_quantize_file; NULL: the type that each has in the checkpoint
 *   params   NULL for the defaults
 *
 * Classes: LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3_5ForCausalLM, and the text model of
 * Qwen3_5ForConditionalGeneration; an MTP block is converted with its model. Matrices whose groups of 128 weights are d
 * and -d; d, 0 and -d; or 2d, d, 0 and -d are recognised and stored without loss in Q1_0, PTQ1_0 or PQ2_0, or in `type`
 * if that has 1 or 2 bits and can represent them; a `type` of more bits is used as given. Matrices in FP8 (E4M3 with
 * scales of blocks, rows or matrices), and those packed by MLX, GPTQ or AWQ, are unpacked in f32; with type NULL they
 * are stored in f16 if config.json names that as the dtype, else in bf16. The target is written atomically, as by
 * qn_quantize_file.
 *
 * QN_ERR_INVALID       unknown type, n_threads outside its range, or a type of 1 or 2 bits for ordinary weights without
 *                      `force`
 * QN_ERR_IO            a file cannot be read or `out` cannot be written
 * QN_ERR_FORMAT        a file is damaged, a tensor is missing or unknown (named), or a weight is infinite or NaN
 * QN_ERR_UNSUPPORTED   a model or tokeniser that quern cannot run, or weights packed in another way
 * QN_ERR_CANCELLED     on_progress returned false */
QN_API qn_status qn_convert_checkpoint(const char *folder, const char *out, const char *type,
                                       const qn_convert_params *params);

typedef struct qn_graft_params {
    size_t size;                /* set by QN_GRAFT_PARAMS_INIT */
    int n_threads;              /* at most 1024; 0: one per core, or as many as a quota pays for */
    qn_progress_fn on_progress; /* in bytes of the tensors of both inputs; NULL: none */
    qn_log_fn on_log;           /* reports what was joined, and each matrix that gets a wider type; NULL: none */
    void *user;                 /* passed to both callbacks */
} qn_graft_params;
#define QN_GRAFT_PARAMS_INIT QN_INIT(qn_graft_params)

/* qn_graft_mtp - Writes a copy of a model with the block of multi-token prediction (MTP) of another file of it.
 *
 *   model    a GGUF file of an architecture that has such blocks, qwen35, without one; of a split model any of its
 *            files. Its weights may have other types than those of `head`, or be rotated
 *   head     where the block is: a GGUF file with the whole model, or with the block alone as llama.cpp exports it; the
 *            folder of a checkpoint as for qn_convert_checkpoint, of whose weights only the files with the block have
 *            to be there, and no tokenizer.json; or a safetensors file with a config.json next to it
 *   out      the target; none of the files above
 *   type     of the block's matrices: "f32" "f16" "bf16" "q8_0" "q4_0" "q4_1", or "keep" for the types that they have;
 *            NULL: "q8_0". Its vectors become f32
 *   params   NULL for the defaults
 *
 * Tensors and keys of the model are copied unchanged, with their alignment, except block_count, nextn_predict_layers
 * and the arrays with one element a block. The block is not rotated, whatever the model is. Whether the block belongs
 * to the model is judged by what the files say: the architecture, the layers before the block, the sizes of the
 * embedding, the heads and the feed-forward network, rope, and the tokens (the size of the vocabulary, if a file has no
 * list). The target is written atomically, as by qn_quantize_file.
 *
 * QN_ERR_INVALID       unknown type, n_threads outside its range, `out` is an input, the model has a block, the head
 *                      has none, or the two are of different models: the text names what differs
 * QN_ERR_IO            a file cannot be read or `out` cannot be written
 * QN_ERR_FORMAT        a file is damaged, a tensor of the block is missing, unknown or has another shape (named), or a
 *                      weight is infinite, NaN or too large for the type
 * QN_ERR_UNSUPPORTED   quern cannot run the model, or a block that is rotated itself
 * QN_ERR_CANCELLED     on_progress returned false */
QN_API qn_status qn_graft_mtp(const char *model, const char *head, const char *out, const char *type,
                              const qn_graft_params *params);

#ifdef __cplusplus
}
#endif
#endif
