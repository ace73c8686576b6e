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
 * Structs that a caller fills begin with their size, which their initialiser sets (QN_MODEL_PARAMS_INIT of
 * qn_model_params, and so on); all other members have their defaults then. A program that was compiled with an older
 * header passes a smaller struct: the members that it lacks have their defaults. A larger struct may have nothing but
 * zeros beyond the members that the library has. A size of 0, and members that the library does not know, are
 * QN_ERR_INVALID. Structs that the library fills have their size too where the caller provides them, and are filled as
 * far as that goes.
 *
 * Errors: a function that returns qn_status does not write its outputs when it fails, or sets output pointers to NULL;
 * exceptions are stated. qn_error_text() returns the reason.
 *
 * Threads: any number of threads may use one qn_model. Evaluations of its sessions are serialised, batch by batch: each
 * uses the model's whole thread team or its GPU. A qn_session may be used by one thread at a time; qn_session_cancel is
 * the exception. Many sequences that are evaluated together: quern/scheduler.h.
 *
 * Callbacks of a session may call every function but those that change or free the same session, which are
 * qn_session_eval, qn_session_truncate, qn_session_truncate_to, qn_session_checkpoint and qn_generate: these return
 * QN_ERR_INVALID, and qn_session_free does nothing.
 *
 * Processes: a model, its sessions, schedulers and grammars belong to the process that made them. In a forked child
 * their threads do not exist and their locks may be held for ever. There every function that would need one returns
 * QN_ERR_INVALID, functions that free or cancel do nothing, and only what reads constant data goes on to work: text,
 * tokens, templates and properties of the model. A child may load a model of its own; after the parent has used a GPU,
 * on the CPU only.
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

/* Progress of a long operation. Called repeatedly on the thread that called the operation.
 *
 *   user    the pointer given together with the callback
 *   done    work finished so far, in units of the operation: bytes of tensors, or tokens
 *   total   all work, in the same units
 *
 * Return true to continue. Return false to stop: the operation then fails with QN_ERR_CANCELLED. */
typedef bool (*qn_progress_fn)(void *user, size_t done, size_t total);

/* A log message: one line without a newline at its end ("type 42 holds groups of 128"), valid during the call. */
typedef void (*qn_log_fn)(void *user, const char *line);

typedef struct qn_model_params {
    size_t size;        /* set by QN_MODEL_PARAMS_INIT */
    const char *device; /* "auto" or NULL: the first GPU if it can run the model, else the CPU; "cpu"; "cuda" or
                           "cuda:N", the GPU with index N, from 0. A GPU whose driver fails is an error with "auto" too
                         */
    int n_threads;      /* CPU threads, at most 1024; 0: one per physical core */
    /* Bytes that the caches and states of all sessions and schedulers may take, at least 2 MiB; 0: on the CPU half of
     * what is available besides the weights, on a GPU what is free at the first session, less a tenth. */
    uint64_t memory;
    const char *chat_template; /* source of a chat template to use instead of the file's; NULL: the file's */
    bool vocab_only; /* load the tokeniser only: the file may have no tensors, and the model cannot have sessions */
    bool skip_weight_scan; /* do not scan the weights for infinities and NaN */
    /* On a GPU, a sequence of a scheduler has the same bits whatever is evaluated beside it, and with prefixes that are
     * reused: tokens are decoded by kernels for many rows also where one is alone, at most 8 at a time if a matrix has
     * weights of 4 or more bits, and prompts are evaluated 64 tokens at a time. Slower. On the CPU it is always so. */
    bool deterministic;
    qn_progress_fn on_progress; /* called while the weights are scanned, in bytes; NULL: none */
    /* Notes while the model is loaded, and on a GPU also later, from any thread that uses the model: of a kernel that
     * has to be compiled. NULL: none. */
    qn_log_fn on_log;
    void *user; /* passed to both callbacks; outlives the model where there is on_log */
} qn_model_params;
#define QN_MODEL_PARAMS_INIT QN_INIT(qn_model_params)

/* qn_model_load - map a GGUF file, validate it and prepare the model for inference.
 *
 *   path     the file; of a split model (PREFIX-00001-of-00003.gguf ..., as written by llama.cpp's gguf-split) any of
 *            its files
 *   params   NULL for the defaults
 *   out      the model; free it with qn_model_free
 *
 * All files of a split model must be in one directory. Keys and vocabulary are copied; the weights are packed for the
 * CPU or copied to the GPU before the function returns, and others stay mapped. So the files must not change while the
 * model exists: one that is overwritten changes the results, one that is cut ends the program by SIGBUS. Replacing them
 * by rename is harmless.
 *
 * A file without a tokeniser ("no_vocab") loads. So does one whose tokeniser is not supported, except with vocab_only.
 * Functions that need text then fail with QN_ERR_UNSUPPORTED and name the tokeniser.
 *
 * QN_ERR_IO            a file cannot be read, or has changed while it was; files of a split model are missing; the text
 *                      names them
 * QN_ERR_FORMAT        a file is damaged, or a weight is infinite or NaN
 * QN_ERR_INVALID       chat_template is not a template
 * QN_ERR_UNSUPPORTED   the architecture, a tensor type, the tokeniser (with vocab_only) or the device is not supported
 * QN_ERR_INVALID       params has a value outside its range, or an unknown device name
 * QN_ERR_MEMORY        not enough memory on the host or on the GPU
 * QN_ERR_DEVICE        the driver of the GPU reported an error; of every function that uses the GPU
 * QN_ERR_CANCELLED     on_progress returned false */
QN_API qn_status qn_model_load(const char *path, const qn_model_params *params, qn_model **out);

/* qn_model_free - free a model. Its sessions and schedulers must have been freed before. NULL is allowed. In a forked
 * child it does nothing: what other threads were changing at the fork is left as it is. */
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
    uint64_t file_bytes;      /* size of the file; of a split model, of all files */
    uint64_t bytes_per_token; /* bytes of weights read to decode one token; excluding the KV cache and the state */
    uint64_t cache_bytes_per_position; /* bytes of f16 KV cache per token of context, in all layers */
    uint64_t recurrent_bytes; /* bytes of recurrent state, independent of the context length: on the CPU read for
                                 every token and written for every 64th; 0 if the model has no recurrent layers */
    int n_threads;            /* threads of the team; 0 with vocab_only */
    const char *cpu;          /* instruction set used on the CPU: "avx512" */
    const char *device;       /* "cpu", "cuda:0"; "" with vocab_only */
    const char *tokeniser;    /* "gpt2/qwen2"; "" if the file has none that quern supports */
} qn_model_info;

/* qn_model_get_info - the properties of a model. Owned by the model: they do not change, and are valid until it is
 * freed. Later versions add members at the end. */
QN_API const qn_model_info *qn_model_get_info(const qn_model *model);

/* ---- Text ---- */

/* qn_tokenize - convert text to token ids.
 *
 *   text            [length] bytes, valid UTF-8 or not; no terminator needed
 *   length          in bytes
 *   parse_special   true: special tokens spelled in the text ("<|im_end|>") become their ids; pass false for untrusted
 *                   text. User-defined tokens, which in some vocabularies are "</think>" and "<tool_call>", always do:
 *                   messages are for qn_conversation_tokens
 *   add_bos         true: put the beginning-of-text token first, if the model uses one
 *   tokens          [*count] the ids; free with qn_free_tokens. Empty text gives a valid pointer and a count of 0
 *   count           number of ids
 *
 * QN_ERR_UNSUPPORTED   the model has no supported tokeniser
 * QN_ERR_MEMORY        not enough memory */
QN_API qn_status qn_tokenize(const qn_model *model, const char *text, size_t length, bool parse_special, bool add_bos,
                             qn_token **tokens, size_t *count);

/* qn_free_tokens - free the tokens of qn_tokenize, qn_chat_tokens or qn_dry_breakers. NULL is allowed. */
QN_API void qn_free_tokens(qn_token *tokens);

/* qn_token_piece - the bytes of one token. They may be a part of a UTF-8 character. A special token gives its name
 * ("<|im_end|>").
 *
 *   token    an id of the tokeniser's vocabulary, else QN_ERR_INVALID
 *   bytes    [*length] owned by the model, without a terminator
 *   length   in bytes
 *
 * QN_ERR_UNSUPPORTED if the model has no supported tokeniser. */
QN_API qn_status qn_token_piece(const qn_model *model, qn_token token, const char **bytes, size_t *length);

/* qn_token_is_special - true for a control token, which displayed text does not contain; false for an id outside the
 * vocabulary. */
QN_API bool qn_token_is_special(const qn_model *model, qn_token token);

/* qn_token_is_end - true if the token ends generation (end of text, end of turn); false for an id outside the
 * vocabulary. */
QN_API bool qn_token_is_end(const qn_model *model, qn_token token);

/* What the model's chat template has, told from its source and from what it prints. Strings are never NULL. */
typedef struct qn_chat_format {
    const char *source; /* "file", "given" (qn_model_params.chat_template), "chatml" (the file has none); "" for none to
                           use */
    const char *problem; /* why there is none; "" if there is one */
    /* How it writes tool calls: "json", "xml", "llama3"; "" if it has no tools; "unknown" if it has, but writes calls
     * in a way that quern does not parse, so that tools are refused (docs/tool-calls.md). */
    const char *tool_calls;
    const char *think_open, *think_close; /* around reasoning: "<think>" and "</think>"; "" if it has none */
    bool has_enable_thinking;             /* it reads enable_thinking, by which thinking is switched on and off */
    bool has_reasoning_effort;            /* it reads reasoning_effort */
    const char *const *efforts; /* [n_efforts] the levels of it that it knows, least first; none if it prints any */
    size_t n_efforts;
} qn_chat_format;

/* qn_model_get_chat_format - the properties of the model's chat template. Owned by the model, as qn_model_get_info is.
 *
 * Levels of reasoning_effort are none, minimal, low, medium, high, xhigh and max. A conversation may have any of them:
 * one that the template refuses becomes the nearest one above it, else below it, that it knows. */
QN_API const qn_chat_format *qn_model_get_chat_format(const qn_model *model);

typedef struct qn_chat_message {
    const char *role;    /* "system", "user" or "assistant" */
    const char *content; /* UTF-8 */
} qn_chat_message;

/* qn_chat_tokens - convert a conversation to tokens in the model's chat format.
 *
 *   messages        [n] in order. Special tokens spelled in roles and contents are not parsed
 *   n               number of messages
 *   add_assistant   true: append the header of the assistant's next turn
 *   tokens          as for qn_tokenize
 *   count           as for qn_tokenize
 *
 * The same as qn_conversation_tokens of {"messages": [...], "add_generation_prompt": add_assistant} at the current
 * time.
 *
 * QN_ERR_UNSUPPORTED   there is no chat template that can be used; the text has the reason
 * QN_ERR_INVALID       a role or content is NULL, or the template raises an exception, whose text is the error text */
QN_API qn_status qn_chat_tokens(const qn_model *model, const qn_chat_message *messages, size_t n, bool add_assistant,
                                qn_token **tokens, size_t *count);

/* qn_conversation_text - print a conversation with the model's chat template.
 *
 *   conversation   [length] JSON: an object with `messages`, and where wanted `tools`, `add_generation_prompt`,
 *                  `enable_thinking`, `reasoning_effort` and any other variable of the template. Messages are objects
 *                  as transformers' apply_chat_template takes them: role, content (text or parts), tool_calls
 *                  (arguments as objects), reasoning_content. bos_token and eos_token given here win over the
 *                  vocabulary's; tools and documents are none if they are missing. With `continue_final_message` true
 *                  the text ends with the content of the last message, the assistant's, for an answer that goes on with
 *                  it. Depth at most 256, no key twice in an object
 *   now            seconds since 1970, for templates that print the date; negative: the current time
 *   text           [*text_length] and a terminator; free with qn_free_text
 *
 * Templates are Jinja, run with the limits that docs/chat-templates.md lists. Without a template in the file ChatML is
 * used, where the vocabulary has its tokens.
 *
 * QN_ERR_UNSUPPORTED   there is no chat template that can be used, or no tokeniser; the text has the reason
 * QN_ERR_INVALID       not such JSON; the template raises an exception, whose text is the error text; it fails, or
 *                      exceeds a limit: the text has its line and expression; the last message cannot be continued */
QN_API qn_status qn_conversation_text(const qn_model *model, const char *conversation, size_t length, int64_t now,
                                      char **text, size_t *text_length);
QN_API void qn_free_text(char *text);

/* qn_conversation_tokens - the tokens of that text. Special tokens that the template spells become their ids; what the
 * conversation spells does not.
 *
 *   tokens, count   as for qn_tokenize
 *
 * Fails as qn_conversation_text. */
QN_API qn_status qn_conversation_tokens(const qn_model *model, const char *conversation, size_t length, int64_t now,
                                        qn_token **tokens, size_t *count);

/* qn_conversation_count - how many they are, without the memory that they take. */
QN_API qn_status qn_conversation_count(const qn_model *model, const char *conversation, size_t length, int64_t now,
                                       size_t *count);

/* ---- Session ---- */

typedef struct qn_session_params {
    size_t size;      /* set by QN_SESSION_PARAMS_INIT */
    uint32_t n_ctx;   /* most tokens; 0: the context length used in training, or the tokens that the memory of
                         sessions holds if these are fewer (qn_capacity.tokens_per_sequence). The same rule holds for
                         schedulers, the program and the server */
    uint32_t n_batch; /* tokens per prefill batch, 1 to 4096; 0: 128 on the CPU, 2048 on a GPU. Affects memory and
                         speed; on the CPU it does not affect results */
    const char *kv;   /* format of the KV cache: NULL or "f16"; or AURA codes with the given number of bits: "aura8",
                         "aura6", "aura4", "aura3", "aura2"; "aura4v3" and "aura4v2" have 4 bits for keys and 3 or 2 for
                         values */
    uint32_t n_checkpoints; /* checkpoints kept, 1 to 64; 0: 4 */
    qn_log_fn on_log;       /* reports a cache format that differs from `kv`; NULL: none */
    void *user;             /* passed to on_log */
} qn_session_params;
#define QN_SESSION_PARAMS_INIT QN_INIT(qn_session_params)

/* qn_session_create - create an empty session.
 *
 *   model    must outlive the session
 *   params   NULL for the defaults
 *   out      the session; free it with qn_session_free
 *
 * The cache takes memory of the model's sessions (qn_model_params.memory) in pages of 64 tokens as it grows, and gives
 * it back. AURA codes require heads of 64, 80, 96, 128, 192, 256 or 512 elements, and biases of queries, keys and
 * values that are not much larger than what they are added to (docs/aura.md); else the cache is f16 in all layers, and
 * on_log reports it.
 *
 * QN_ERR_INVALID       params has a value outside its range, or the model was loaded with vocab_only
 * QN_ERR_UNSUPPORTED   unknown cache format
 * QN_ERR_MEMORY        not enough memory on the host or on the GPU */
QN_API qn_status qn_session_create(qn_model *model, const qn_session_params *params, qn_session **out);

/* qn_kv_check - whether there is a KV cache format of this name, as in qn_session_params: QN_ERR_UNSUPPORTED, with
 * those that there are, for another one. */
QN_API qn_status qn_kv_check(const char *kv);

/* What fits in the memory of sessions (qn_model_params.memory). */
typedef struct qn_capacity {
    size_t size;                  /* set by QN_CAPACITY_INIT */
    uint64_t memory_limit;        /* bytes of caches and states of all sessions and schedulers */
    uint64_t bytes_per_position;  /* of the cache, in all layers; of AURA codes where a page is complete */
    uint64_t bytes_per_sequence;  /* of recurrent state, with AURA codes of two f16 pages too; independent of the length
                                   */
    uint64_t tokens_per_sequence; /* the most tokens that each of the sequences can have at the same time; 0: not all
                                     fit */
} qn_capacity;
#define QN_CAPACITY_INIT QN_INIT(qn_capacity)

/* qn_model_get_capacity - how many tokens of context the memory holds.
 *
 *   kv            format of the KV cache, as in qn_session_params
 *   n_sequences   at least 1: sequences that share nothing, of the same length. Checkpoints and forks take memory too
 *   capacity      its size is set; all else is written
 *
 * What sessions and schedulers hold now does not count. On a GPU the first session, scheduler or call of this
 * function fixes the memory's limit.
 *
 * QN_ERR_INVALID       n_sequences is 0, or the model was loaded with vocab_only
 * QN_ERR_UNSUPPORTED   unknown cache format
 * QN_ERR_MEMORY        not enough memory for an empty session */
QN_API qn_status qn_model_get_capacity(qn_model *model, const char *kv, uint32_t n_sequences, qn_capacity *capacity);

/* qn_session_free - free a session. NULL is allowed. */
QN_API void qn_session_free(qn_session *session);

/* qn_session_length - the number of tokens in the session.
 * qn_session_capacity - its n_ctx. */
QN_API uint32_t qn_session_length(const qn_session *session);
QN_API uint32_t qn_session_capacity(const qn_session *session);

/* qn_session_tokens - the tokens in the session, [qn_session_length]. Owned by the session, valid until it changes. */
QN_API const qn_token *qn_session_tokens(const qn_session *session);

/* qn_session_truncate - drop all tokens after the first `length`.
 *
 *   length   at most qn_session_length, else QN_ERR_INVALID
 *
 * Models without recurrent layers: any length. With a cache of AURA codes up to 63 tokens are evaluated again, because
 * the f16 values of their page no longer exist. If that fails, the error is returned and the session holds up to 63
 * tokens fewer.
 *
 * Models with recurrent layers, on the CPU: every 64 tokens are folded into the recurrent state, which cannot be
 * undone. A session of n tokens can be truncated to the lengths above (n-1)/64*64 (those of its open chunk), to the
 * lengths that a checkpoint of n tokens allows by the same rule, and to 0.
 *
 * Models with recurrent layers, on a GPU: of these lengths those that drop at most 5 tokens of the session or of a
 * checkpoint, and 0.
 *
 * Any other length is QN_ERR_UNSUPPORTED: the text lists the possible lengths, and the session is unchanged.
 * Checkpoints of more than `length` tokens are dropped. QN_ERR_MEMORY if there is no memory to return to a checkpoint:
 * the session is then empty. */
QN_API qn_status qn_session_truncate(qn_session *session, uint32_t length);

/* qn_session_truncate_to - truncate to the longest beginning that a prompt shares with the session and that
 * qn_session_truncate can return to. What follows it is left to evaluate, at least the last token of the prompt.
 *
 *   tokens   [n] the whole prompt, n >= 1
 *   shared   the session's length afterwards: tokens of the prompt that are not to be evaluated
 *
 * A conversation with its next turns continues so:
 *
 *     qn_conversation_tokens(model, conversation, length, -1, &tokens, &n);
 *     qn_session_truncate_to(session, tokens, n, &shared);
 *     qn_generate(session, tokens + shared, n - shared, &params, NULL);
 *
 * Errors are those of qn_session_truncate but for QN_ERR_UNSUPPORTED. */
QN_API qn_status qn_session_truncate_to(qn_session *session, const qn_token *tokens, size_t n, uint32_t *shared);

/* qn_session_checkpoint - save the current length, with the pending token (qn_session_pending), for
 * qn_session_truncate.
 *
 * For models with recurrent layers, complete pages and the state are shared with the session until it changes them; the
 * open chunk and the open page are copied. Other models need no copy. The session keeps the newest n_checkpoints of
 * qn_session_params. qn_session_fork copies checkpoints, qn_session_save does not save them. Without tokens nothing
 * happens. QN_ERR_MEMORY if there is no memory for the copy. */
QN_API qn_status qn_session_checkpoint(qn_session *session);

/* qn_session_reach - the greatest length, not above `length`, that qn_session_truncate accepts; 0 if there is no
 * other. */
QN_API uint32_t qn_session_reach(const qn_session *session, uint32_t length);

/* qn_session_pending - the token that the last qn_generate sampled but did not evaluate. Pass it as the first token of
 * the next call to continue the sequence.
 *
 *   token   written if there is one
 *
 * Returns whether there is one. Evaluating tokens discards it, and so does truncating to fewer tokens; truncating to
 * the length of a checkpoint restores the one that was pending there. */
QN_API bool qn_session_pending(const qn_session *session, qn_token *token);

/* qn_session_kv - the format of the session's KV cache ("aura4"). A static string. */
QN_API const char *qn_session_kv(const qn_session *session);

/* qn_session_cache_bytes - bytes used by `length` tokens: their keys and values, and the state of recurrent layers,
 * which does not depend on the length. In a cache of AURA codes the first 64 tokens and the last length mod 64 tokens
 * are f16. */
QN_API uint64_t qn_session_cache_bytes(const qn_session *session, uint32_t length);

/* qn_session_fork - create an independent session with the same contents: tokens, KV cache, state, pending token,
 * checkpoints.
 *
 *   out   the new session; free it with qn_session_free
 *
 * Both share the complete pages of the cache and the recurrent state; what one of them changes is copied first. The
 * progress callback and a pending request to cancel are not copied. QN_ERR_MEMORY if there is no memory for the
 * copy. */
QN_API qn_status qn_session_fork(const qn_session *session, qn_session **out);

/* qn_session_save - write a session to a file: tokens, KV cache, state, pending token. Checkpoints are not saved.
 *
 * The file is written atomically, under a temporary name that is renamed at the end. Its size is about
 * qn_session_cache_bytes(session, qn_session_length(session)). It contains the conversation: its mode is 0600, whatever
 * the umask and the mode of a file that it replaces.
 *
 * QN_ERR_INVALID   `path` exists, is not empty and is not a session file; it is not changed
 * QN_ERR_IO        the file cannot be written */
QN_API qn_status qn_session_save(const qn_session *session, const char *path);

/* qn_session_restore - create a session from a file written by qn_session_save. With the same instruction set, its
 * logits are bit-identical to those of the session that was saved.
 *
 *   model    the same model, that is one with the same hyperparameters and tensors; a copy of the file is the same
 *            model
 *   path     the session file
 *   params   as for qn_session_create, NULL for the defaults. n_ctx may differ from the saved one; 0: the saved one. kv
 *            must be NULL or the saved format
 *   out      the session; free it with qn_session_free
 *
 * A session saved on one device can be restored on another. Files of the version before this one can be restored if the
 * CPU wrote them. The file is validated with checksums, sizes and token ids. A file forged with valid checksums can
 * change what the session generates, but cannot corrupt memory.
 *
 * QN_ERR_IO            the file cannot be read
 * QN_ERR_FORMAT        the file is damaged, truncated, or not a session file
 * QN_ERR_UNSUPPORTED   another file version or cache format
 * QN_ERR_INVALID       another model, or params has a value outside its range
 * QN_ERR_CONTEXT       n_ctx is too small for the saved tokens
 * QN_ERR_MEMORY        not enough memory */
QN_API qn_status qn_session_restore(qn_model *model, const char *path, const qn_session_params *params,
                                    qn_session **out);

/* The tokens whose logits qn_session_eval computes. */
typedef enum qn_logits { QN_LOGITS_NONE, QN_LOGITS_LAST, QN_LOGITS_ALL } qn_logits;

/* qn_session_eval - append tokens and compute the logits of their next tokens.
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
 * QN_ERR_MEMORY      there is no memory for more of the cache; tokens of finished batches remain in the session
 * QN_ERR_INVALID     an id is outside the vocabulary, or logits is NULL; the session is unchanged
 * QN_ERR_CANCELLED   by qn_session_cancel or the progress callback. Tokens of finished batches remain in the session,
 *                    and with QN_LOGITS_ALL their logits have been written */
QN_API qn_status qn_session_eval(qn_session *session, const qn_token *tokens, size_t n, qn_logits which, float *logits);

/* qn_session_on_progress - set the callback that is called between the batches of a long evaluation, in tokens. NULL
 * removes it. */
QN_API void qn_session_on_progress(qn_session *session, qn_progress_fn on_progress, void *user);

/* qn_session_cancel - stop the session's current evaluation or generation after the current batch, with
 * QN_ERR_CANCELLED or QN_FINISH_CANCELLED; if none is running, the next one.
 *
 * A call that ends before it checks the request completes normally and clears the request. May be called from any
 * thread and from a signal handler. */
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
    /* As OpenAI defines them; 0: off. Subtracted from the logits of the tokens of the generated text: */
    float frequency_penalty; /* times the number of occurrences there */
    float presence_penalty;  /* once */
    uint64_t seed;           /* the same seed and logits give the same tokens on every host and device */
    /* Keep the tokens with logits of at least the largest minus top_n_sigma standard deviations of the logits; 0: all.
     * Tang et al., Top-nσ: Not All Logits Are You Need (2024). */
    float top_n_sigma;
    /* Locally typical sampling: keep the tokens whose surprisals are closest to the entropy and whose probabilities sum
     * to typical_p; 0 or 1: all. Meister et al., Locally Typical Sampling (2022). */
    float typical_p;
    /* Exclude top choices: with this probability, of the tokens that are left by all other filters and have at least
     * xtc_threshold of their probability, all but the least likely one are dropped; 0: never. llama.cpp, from
     * text-generation-webui. */
    float xtc_probability;
    float xtc_threshold; /* above 0.5 none can be dropped */
    /* DRY: a token that would make a repetition longer, whose preceding n tokens occurred before it in the text as they
     * do now, loses dry_multiplier * dry_base^(n - dry_allowed_length) of its logit, before the other penalties; 0:
     * off, and the next four are not read. p-e-w, text-generation-webui (2024); as in llama.cpp. */
    float dry_multiplier;
    float dry_base;         /* at least 1 */
    int dry_allowed_length; /* shorter repetitions are not penalised; those longer by more than 128 count as by 128 */
    int dry_penalty_last_n; /* number of preceding tokens that are searched, at most 8192; -1: all of these, 0: off */
    /* [n_dry_breakers] sequences of tokens that no repetition goes across, each followed by -1; those of one token are
     * not penalised. qn_dry_breakers makes them from texts. */
    const qn_token *dry_breakers;
    size_t n_dry_breakers; /* tokens and -1s of all of them */
    /* Mirostat, version 2: instead of the filters from top_n_sigma to XTC, tokens with more surprisal than a bound are
     * dropped, which follows the surprise of the drawn tokens so that their mean is mirostat_tau. Basu et al., Mirostat
     * (2021). On the CPU. */
    int mirostat;       /* 0: off, 2: on */
    float mirostat_tau; /* bits; the bound begins at twice as much */
    float mirostat_eta; /* how fast the bound follows */
    /* Zeros. Later versions have their new members here: the struct is a member of qn_request_params, and keeps its
     * size. */
    uint64_t reserved[16];
} qn_sampling;
#define QN_SAMPLING_INIT                                                                                               \
    {                                                                                                                  \
        .size = sizeof(qn_sampling), .temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f,                 \
        .repeat_penalty = 1, .repeat_last_n = 64, .typical_p = 1, .xtc_threshold = 0.1f, .dry_base = 1.75f,            \
        .dry_allowed_length = 2, .dry_penalty_last_n = -1, .mirostat_tau = 5, .mirostat_eta = 0.1f                     \
    }

/* qn_sampling_init - QN_SAMPLING_INIT for languages without macros. `size` is that of the caller's struct. */
QN_API void qn_sampling_init(qn_sampling *sampling, size_t size);

enum { QN_MAX_DRY_BREAKERS = 64, QN_MAX_DRY_BREAKER_BYTES = 64 };

/* qn_dry_default_breakers - llama.cpp's, [*n] texts: a newline, a colon, a quotation mark, an asterisk. */
QN_API const char *const *qn_dry_default_breakers(size_t *n);

/* qn_dry_breakers - qn_sampling.dry_breakers of texts, as llama.cpp has them.
 *
 * A token that contains one of the texts is one. So is a token that ends with a beginning of one, with the tokens of
 * the rest of it behind it: a text that is divided into tokens in another way is not found.
 *
 *   texts      [n] at most QN_MAX_DRY_BREAKERS, each of 1 to QN_MAX_DRY_BREAKER_BYTES bytes
 *   breakers   [*count] free with qn_free_tokens; not NULL on success
 *
 * QN_ERR_INVALID       a text is empty or too long, there are too many, or they are more than four tokens for each one
 *                      of the vocabulary
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
 * penalties, temperature and filters, as vLLM and llama.cpp's server return them by default. If a logit is NaN or the
 * largest infinite, none are listed and `chosen` is NaN. The same logits give the same bits on every device. */
typedef struct qn_logprobs {
    uint32_t n;   /* most likely tokens that are listed, at most QN_MAX_LOGPROBS and the size of the vocabulary */
    float chosen; /* of the sampled token, which need not be listed */
    qn_token tokens[QN_MAX_LOGPROBS];
    float values[QN_MAX_LOGPROBS]; /* descending; of equal ones the lower id first */
} qn_logprobs;

/* A sampler: its parameters and the state of its random number generator. One thread at a time. */
typedef struct qn_sampler qn_sampler;

/* qn_sampler_create - create a sampler.
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

/* qn_sampler_free - free a sampler. NULL is allowed. */
QN_API void qn_sampler_free(qn_sampler *sampler);

/* qn_sampler_pick - sample the next token, in this order: DRY, repeat_penalty, frequency_penalty and presence_penalty,
 * top_n_sigma, top_k, temperature, typical_p, top_p, min_p, XTC, random draw.
 *
 *   logits     [n_vocab] f32, not changed. A logit of -inf excludes its token. QN_ERR_INVALID for a NaN, or if the
 *              largest logit is infinite
 *   recent     [n_recent] the preceding tokens, oldest first. repeat_penalty applies to the last repeat_last_n of them;
 *              frequency_penalty and presence_penalty to those behind the n_recent tokens of the sampler's first call,
 *              which are the generated text if all preceding tokens are passed in every call
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
    QN_FINISH_ERROR,     /* `status` and `error` say what */
    QN_FINISH_WITHDRAWN  /* it had not begun when the scheduler was closed (qn_scheduler_close) */
} qn_finish;

/* How a request ended. The library allocates the struct that on_end receives; qn_generate fills one of the caller. */
typedef struct qn_request_result {
    size_t size; /* set by QN_REQUEST_RESULT_INIT */
    qn_finish finish;
    qn_status status;     /* QN_OK unless finish is QN_FINISH_ERROR */
    const char *error;    /* its text, "" else; valid during on_end, and after qn_generate as qn_error_text is */
    bool is_stop_string;  /* finish is QN_FINISH_STOP because of a stop string */
    size_t stop_string;   /* with is_stop_string: its index in `stop` */
    size_t n_prompt;      /* tokens of the prompt; of qn_generate those that were evaluated: fewer if it was cancelled
                             meanwhile */
    size_t n_reused;      /* of these, tokens that were not evaluated, because a prefix was found */
    size_t n_generated;   /* tokens generated, an end token included */
    size_t n_jumped;      /* of n_generated, tokens of forced text that took no step of their own */
    uint32_t n_set_aside; /* how often it gave up its memory for other requests; at most 2 */
    uint32_t n_yielded;   /* how often it gave up its place for a request of another client */
    double queued_seconds, prompt_seconds, generate_seconds; /* until admitted; until the first token is sampled; the
                                                                rest */
} qn_request_result;
#define QN_REQUEST_RESULT_INIT QN_INIT(qn_request_result)

/* Of quern/grammar.h. */
typedef struct qn_grammar qn_grammar;

/* Where a grammar begins in an answer. The text before is free. */
typedef enum qn_grammar_when {
    QN_GRAMMAR_AT_ONCE,
    /* Behind the reasoning of the model's chat template, where the prompt ends inside it (<think>) or the answer begins
     * with it; at once for prompts in which it has ended, and for templates without reasoning. */
    QN_GRAMMAR_AFTER_REASONING,
    QN_GRAMMAR_AFTER_TEXT, /* behind the first `text` */
    QN_GRAMMAR_AT_CALL     /* behind the delimiter that opens the first tool call outside reasoning: for
                              qn_grammar_create_calls */
} qn_grammar_when;

typedef struct qn_grammar_trigger {
    qn_grammar_when when;
    const char *text; /* zero-terminated UTF-8, 1 to 255 bytes; NULL unless QN_GRAMMAR_AFTER_TEXT */
} qn_grammar_trigger;

/* Whether text that a grammar forces takes fewer steps: its tokens are evaluated together, and those are kept that
 * would have been sampled one by one. Answers are the same (docs/constrained-output.md). */
typedef enum qn_jump_forward {
    QN_JUMP_FORWARD_AUTO, /* where it was measured to be faster: on the CPU, where nothing else is decoded */
    QN_JUMP_FORWARD_ON,
    QN_JUMP_FORWARD_OFF
} qn_jump_forward;

/* A prompt and what its answer is to be. qn_generate runs one on a session, a scheduler (quern/scheduler.h) many at
 * once. */
typedef struct qn_request_params {
    size_t size; /* set by QN_REQUEST_PARAMS_INIT */

    /* The prompt: tokens, or text, or messages in the model's chat format with the assistant's header at the end, or a
     * conversation as qn_conversation_tokens takes it, with tools and reasoning where wanted. */
    const qn_token *tokens; /* [n_tokens] */
    size_t n_tokens;
    const char *text;                /* zero-terminated UTF-8; special tokens in it are parsed */
    const qn_chat_message *messages; /* [n_messages] */
    size_t n_messages;
    const char *conversation; /* [conversation_length] JSON */
    size_t conversation_length;

    qn_sampling sampling;
    const qn_logit_bias *bias; /* [n_bias] added to the logits; values of a token that occurs twice are added */
    size_t n_bias;
    int n_logprobs; /* 0 to QN_MAX_LOGPROBS: on_token gets log probabilities, and this number of the most likely tokens;
                       -1: none */
    int64_t max_tokens; /* tokens to generate; < 0: no limit but the context */
    /* The first tokens, which do not end the answer: end tokens and stop tokens are not sampled, stop strings that are
     * complete within them are text. At most max_tokens. A grammar goes before it: where only such tokens may follow,
     * one ends the answer. <= 0: none. */
    int64_t min_tokens;
    bool ignore_end;             /* continue after end tokens, for benchmarks; a grammar begins again after one */
    bool show_special;           /* on_text and on_event receive the names of special tokens */
    const char *const *stop;     /* [n_stop] stop strings, UTF-8, not empty */
    size_t n_stop;               /* with on_event they are found in content, not in reasoning and calls */
    const qn_token *stop_tokens; /* [n_stop_tokens] tokens that end the answer as end tokens do, also with ignore_end */
    size_t n_stop_tokens;

    qn_grammar *grammar; /* what the generated text is to be; NULL: any text. End tokens follow where it may end.
                            Referenced */
    qn_grammar_trigger grammar_trigger;
    /* With a grammar, but not with log probabilities, which need each token's own step, mirostat or a reasoning_budget,
     * nor on a deterministic GPU. */
    qn_jump_forward jump_forward;

    /* Tokens of reasoning after which it is ended by the chat template's words ("\n</think>\n\n"); < 0: no limit. The
     * words are not sampled, but count as generated: on_token gets their tokens without log probabilities, mask and
     * accepts find them in `answer`. They wait for the end of a character. Nothing happens where the template has no
     * reasoning. */
    int64_t reasoning_budget;

    /* With on_event: the tools that the prompt has, [tools_length] JSON, an array as in a conversation. Without them a
     * call is content. A conversation has its own. */
    const char *tools;
    size_t tools_length;

    /* For a scheduler; qn_generate does not read these. */

    /* Lengths of the prompt at which another request may continue differently, such as the ends of messages: recurrent
     * layers keep their state at the last multiple of 64 before them. Only with tokens: for messages the library sets
     * them. */
    const uint32_t *marks; /* [n_marks], ascending, at most n_tokens */
    size_t n_marks;
    const char *scope; /* prefixes are shared within a scope only; NULL: the scope "" */

    /* Who asks, such as a user or an address; NULL: the client "". Clients share the scheduler evenly: places among the
     * sequences of a step, rows of prompts, and the queue. The requests of one delay those of another by the end of a
     * step, however many they are; within a client they are admitted by priority. */
    const char *client;
    int priority; /* requests of higher priority are admitted first; waiting raises it by one each second */

    double deadline; /* seconds from now after which the request ends; 0: none. Of qn_generate too */

    /* Which tokens may follow, for answers that a grammar or a schema describes. `answer` is [n] tokens, all that were
     * generated so far.
     *   mask      sets the bits of the tokens that may follow: bit t % 32 of allowed[t / 32]. allowed is
     *             [(n_vocab + 31) / 32] words that are zero. If no token of a finite logit is allowed, the request ends
     *             with an error. NULL: all tokens are allowed
     *   accepts   whether `token`, which was sampled from all tokens, may follow. Only if it may not, mask is called,
     *             and a token is sampled from the same logits under the mask. NULL: mask is called for each token. Not
     *             without mask
     * End tokens are asked about like others. Not together with a grammar, which needs neither.
     *
     * With accepts most tokens cost one question and no mask. Greedy answers are the same with it and without. Sampled
     * ones follow the same distribution if top_k, top_p and min_p are off; else these filters see the whole vocabulary
     * first, and that of the mask only after a rejection.
     *
     * accepts is called by the thread that runs steps, while all requests and sessions of the model wait: it must
     * return in microseconds, must not block, and must not call functions of the library. mask is called as the
     * callbacks below, by the same thread, after all of those of earlier tokens. While it runs the steps of other
     * requests go on, so it may take longer than a step; but other callbacks wait for it. The two are never called at
     * the same time for one request; accepts may be while on_token, on_text or on_event is. They may keep a state for
     * the tokens that they have seen: a token that was accepted follows, as does one of the mask, and n never
     * decreases. */
    bool (*accepts)(void *user, const qn_token *answer, size_t n, qn_token token);
    void (*mask)(void *user, const qn_token *answer, size_t n, uint32_t *allowed);

    /* Callbacks, in order, by one thread at a time; of qn_generate, by its thread. A scheduler never calls them between
     * the rows of a step: a slow callback delays no request's tokens, but may delay the callbacks of others. Any may be
     * NULL.
     *   on_token   each generated token, end tokens included, before its text. logprobs is NULL with n_logprobs -1,
     *              else valid during the call
     *   on_text    the generated text, [length] bytes without a terminator, in complete UTF-8 characters. Invalid bytes
     *              are replaced by U+FFFD. Text that may be the beginning of a stop string is held back until that is
     *              decided
     *   on_event   in place of on_text: the answer to a prompt of the model's chat format as reasoning, content and
     *              tool calls (quern/output.h, docs/tool-calls.md). Where the prompt ends inside reasoning, the answer
     *              begins there. A call that has begun ends before on_end, unless a callback returned false or there
     *              was an error
     *   on_end     exactly once, as the last call. Afterwards the library keeps nothing of the request. Not after an
     *              error of qn_scheduler_submit, or of qn_generate before its first step
     * on_token, on_text and on_event return false to end the request: only on_end is called after that, with what they
     * had received. */
    bool (*on_token)(void *user, qn_token token, const qn_logprobs *logprobs);
    bool (*on_text)(void *user, const char *text, size_t length);
    bool (*on_event)(void *user, const qn_output_event *event);
    void (*on_end)(void *user, const qn_request_result *result);

    /* Called while the request is submitted, by that thread: the bytes of memory that it keeps until it has ended, for
     * its prompt, lists, tools and grammar, without what an earlier one of its submission keeps for it, what it
     * generates, and its pages. False: it may not, and the submission is refused with QN_ERR_BUSY. NULL: not called. */
    bool (*on_memory)(void *user, size_t bytes);

    void *user; /* passed to all callbacks */
} qn_request_params;
#define QN_REQUEST_PARAMS_INIT                                                                                         \
    {                                                                                                                  \
        .size = sizeof(qn_request_params), .sampling = QN_SAMPLING_INIT, .n_logprobs = -1, .max_tokens = -1,           \
        .reasoning_budget = -1                                                                                         \
    }

/* qn_request_params_init - QN_REQUEST_PARAMS_INIT for languages without macros. `size` is that of the caller's
 * struct. */
QN_API void qn_request_params_init(qn_request_params *params, size_t size);

/* ---- Generation ---- */

/* qn_generate - append a prompt to the session, then generate until the answer ends.
 *
 *   params   its prompt continues what the session holds: pass the pending token first (qn_session_pending), and then
 *            new tokens
 *   result   its size is set; written on success. NULL is allowed
 *
 * The same as a request of a scheduler that has no other one, with the session's memory. Afterwards the session holds
 * the prompt and the generated tokens except the last, which has been sampled but not evaluated and is now the pending
 * token. Tokens that spell a stop string are in the session. Two cases differ:
 *
 *   cancelled during prefill   the session holds the first n_prompt tokens of the prompt; no token is pending
 *   max_tokens is 0            the session holds the whole prompt; no token is pending
 *
 * With a grammar, tokens have the distribution of the model's among those that may follow, filters applied to these.
 * Greedy text is the same for any number of threads and any split of the prompt, as without.
 *
 * QN_ERR_CONTEXT       the prompt does not fit in the context; the session is unchanged
 * QN_ERR_INVALID       no prompt, more than one, an id outside the vocabulary, a value outside its range; no token may
 *                      follow, as where a grammar is complete and the vocabulary has no end token; on_event with
 *                      on_text, or tools without on_event
 * QN_ERR_UNSUPPORTED   text, events, a budget, stop strings or a grammar are wanted and the model has no supported
 *                      tokeniser; tools that the chat template does not have, or whose calls cannot be parsed back
 * QN_ERR_MEMORY        no memory for more of the cache. Tokens that were evaluated stay in the session, as after any
 *                      error */
QN_API qn_status qn_generate(qn_session *session, const qn_request_params *params, qn_request_result *result);

/* ---- Files ---- */

typedef struct qn_quantize_params {
    size_t size;   /* set by QN_QUANTIZE_PARAMS_INIT */
    int n_threads; /* at most 1024; 0: one per physical core */
    bool force;    /* writes weights in a type of 1 or 2 bits that does not hold them, which gives a model that is not
                      usable */
    qn_progress_fn on_progress; /* in bytes of the input's tensors; NULL: none */
    qn_log_fn on_log; /* reports each matrix that keeps a wider type, with the reason, and what force wrote; NULL: none
                       */
    void *user;       /* passed to both callbacks */
} qn_quantize_params;
#define QN_QUANTIZE_PARAMS_INIT QN_INIT(qn_quantize_params)

/* qn_quantize_file - write a copy of a GGUF file with its matrices converted to another type.
 *
 *   in       the file; of a split model any of its files: all are read, and one file is written
 *   out      the target; may be the same path as `in`, or a file of the split model, which is then replaced by the new
 *            model
 *   type     "f16" "bf16" "q8_0" "q4_0" "q4_1" "q1_0" "q2_0" "pq2_0" "ptq1_0" "tq1_0" "tq2_0"
 *   params   NULL for the defaults
 *
 * Tensors of one dimension are written as f32. A matrix whose row length is not a multiple of the type's block size
 * gets a wider type, and on_log reports it. Types of 1 and 2 bits are for weights that they hold: binary, ternary or
 * four-valued ones in groups; what is written is decoded again and compared. The target is written atomically: after
 * any error it is unchanged.
 *
 * QN_ERR_INVALID     unknown type, n_threads outside its range, or without `force` a matrix that the type does not hold
 * QN_ERR_IO          `in` cannot be read or `out` cannot be written
 * QN_ERR_FORMAT      `in` is damaged, or a weight is infinite, NaN or too large for the type
 * QN_ERR_CANCELLED   on_progress returned false */
QN_API qn_status qn_quantize_file(const char *in, const char *out, const char *type, const qn_quantize_params *params);

typedef struct qn_convert_params {
    size_t size;   /* set by QN_CONVERT_PARAMS_INIT */
    int n_threads; /* at most 1024; 0: one per physical core */
    bool force;    /* writes ordinary weights in a type of 1 or 2 bits, which gives a model that is not usable */
    qn_progress_fn on_progress; /* in bytes of the checkpoint's tensors; NULL: none */
    qn_log_fn on_log;           /* reports what was recognised, left out and written in a wider type; NULL: none */
    void *user;                 /* passed to both callbacks */
} qn_convert_params;
#define QN_CONVERT_PARAMS_INIT QN_INIT(qn_convert_params)

/* qn_convert_checkpoint - write a GGUF file from a checkpoint of Hugging Face transformers.
 *
 *   folder   has config.json, tokenizer.json, model.safetensors or model.safetensors.index.json with the files that it
 *            lists, and optionally tokenizer_config.json, chat_template.jinja, generation_config.json
 *   out      the target
 *   type     of the matrices: "f32" or a type of qn_quantize_file; NULL: the type that each has in the checkpoint
 *   params   NULL for the defaults
 *
 * Classes: LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3_5ForCausalLM, and the text model of
 * Qwen3_5ForConditionalGeneration; an MTP block is converted with its model. Matrices whose groups of 128 weights are d
 * and -d; d, 0 and -d; or 2d, d, 0 and -d are recognised and stored without loss in Q1_0, PTQ1_0 or PQ2_0, or in `type`
 * if it is of 1 or 2 bits and can hold them; a `type` of more bits is written as it is named. The target is written
 * atomically, as by qn_quantize_file.
 *
 * QN_ERR_INVALID       unknown type, n_threads outside its range, or a type of 1 or 2 bits for ordinary weights without
 *                      `force`
 * QN_ERR_IO            a file cannot be read or `out` cannot be written
 * QN_ERR_FORMAT        a file is damaged, a tensor is missing or unknown (named), or a weight is infinite or NaN
 * QN_ERR_UNSUPPORTED   a model or tokeniser that quern cannot run
 * QN_ERR_CANCELLED     on_progress returned false */
QN_API qn_status qn_convert_checkpoint(const char *folder, const char *out, const char *type,
                                       const qn_convert_params *params);

#ifdef __cplusplus
}
#endif
#endif
