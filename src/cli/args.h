/* The command line: the values that options set, the tables of commands and options, and the parser.
 *
 * commands.c and options.c hold one table each. The parser, the help texts and the OPTIONS section of the manual page
 * are made from them (tests/e2e/cli_options.sh compares the manual page with `quern help --man`).
 *
 * "--opt value", "--opt=value", "-o value" and "-ovalue" are the same; "--" ends the options. If an option is given
 * twice, the last value counts, unless it may be repeated. Bad usage prints one line on standard error; the exit status
 * is 2. */
#ifndef QN_CLI_ARGS_H
#define QN_CLI_ARGS_H

#include "quern/quern.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QN_BYTES_OFF UINT64_MAX /* of an option that a size or "off" is given to */
#define QN_NO_SEED UINT64_MAX   /* each request has a new one */

enum { QN_TEXTS_MAX = 64, QN_MAX_OPERANDS = 3, QN_MAX_OPTIONS = 256 };

typedef struct qn_texts {
    const char *at[QN_TEXTS_MAX];
    size_t count;
} qn_texts;

/* The values of all options of all commands; a command reads the fields of its own options. */
typedef struct qn_args {
    const char *operands[QN_MAX_OPERANDS];
    size_t n_operands;
    bool is_given[QN_MAX_OPTIONS]; /* rows of qn_options */
    bool quiet, verbose, deterministic;
    /* The model and its session. */
    const char *model; /* NULL: the demo model, in commands that take it */
    const char *device, *kv, *numa;
    const char *load, *save; /* session files */
    uint64_t memory, prefix_cache, prefix_host;
    int64_t threads, context, batch;
    /* Text in, text out. */
    const char *prompt, *file, *system, *chat_template, *reasoning, *reasoning_effort, *thinking, *pooling;
    qn_texts stop, stop_tokens;
    int64_t n_predict, min_tokens, reasoning_budget;
    bool chat, ignore_end;
    const char *json_schema, *grammar, *choices, *json_space, *json_order, *jump_forward;
    const char *draft, *draft_model;
    int64_t draft_tokens; /* bench */
    float accept;         /* bench */
    qn_sampling sampling;
    qn_texts dry_breakers; /* as they were given: see qn_breaker_texts */
    /* bench */
    int64_t n_prompt, n_generate, depth, repetitions;
    const char *format, *parallel, *soak, *reuse;
    float rate;
    bool profile;
    /* bench-serve */
    const char *api, *api_key, *lengths;
    int64_t requests, timeout;
    bool may_end;
    /* serve */
    const char *host, *models_dir, *tls_cert, *tls_key, *access_log, *log_format, *prefix_scope;
    qn_texts models, aliases; /* take the place of model */
    int64_t models_max, models_stay;
    qn_texts api_keys, api_key_files, allowed_hosts, cors_origins;
    bool allow_unauthenticated;
    bool no_page, no_slots;
    uint64_t max_body, max_header;
    int64_t port, max_tokens, max_queued, max_connections, max_per_address, drain;
    int64_t header_timeout, body_timeout, idle_timeout;
    /* batch, bench-serve, serve */
    int64_t sequences;
    bool resume, ordered;
    /* perplexity, logits, tokenize, kernels */
    int64_t limit_bytes;
    const char *ids, *output, *conversation;
    bool ids_only, bos, no_special, text_only, clear;
    const char *kl_divergence, *save_logits;
    qn_texts compare;
    /* info */
    bool plan;
    /* convert */
    bool force;
    /* graft */
    const char *type;
} qn_args;

/* ---- Commands ---- */

enum {
    QN_CMD_RUN = 1 << 0,
    QN_CMD_CHAT = 1 << 1,
    QN_CMD_BENCH = 1 << 2,
    QN_CMD_PERPLEXITY = 1 << 3,
    QN_CMD_TOKENIZE = 1 << 4,
    QN_CMD_LOGITS = 1 << 5,
    QN_CMD_INFO = 1 << 6,
    QN_CMD_QUANTIZE = 1 << 7,
    QN_CMD_KERNELS = 1 << 8,
    QN_CMD_BATCH = 1 << 9,
    QN_CMD_CONVERT = 1 << 10,
    QN_CMD_PULL = 1 << 11,
    QN_CMD_LIST = 1 << 12,
    QN_CMD_RM = 1 << 13,
    QN_CMD_BENCH_SERVE = 1 << 14,
    QN_CMD_SERVE = 1 << 15,
    QN_CMD_GRAFT = 1 << 16,
    QN_CMD_DEVICES = 1 << 17
};

typedef struct qn_command {
    unsigned id;
    const char *name;
    const char *brief;   /* its line in `quern help` */
    const char *usage;   /* the command line after "quern " */
    const char *purpose; /* one or more lines, without the last newline */
    size_t min_operands, max_operands;
    void (*defaults)(qn_args *args); /* or NULL; all fields are zero before it */
    int (*run)(qn_args *args);       /* returns the exit status */
} qn_command;

extern const qn_command qn_commands[];
extern const size_t qn_n_commands;

/* A command of another program that runs models. */
typedef struct qn_foreign_command {
    const char *name;
    const char *same;   /* quern's name of it, by which it is run; or NULL */
    const char *answer; /* without one, what to do instead */
} qn_foreign_command;

/* qn_foreign_command_find - returns another program's command by name; NULL: there is none. */
const qn_foreign_command *qn_foreign_command_find(const char *name);

/* qn_command_find - returns a command by name, its own or another program's; NULL: there is none. */
const qn_command *qn_command_find(const char *name);

/* ---- Options ---- */

typedef enum qn_option_kind {
    QN_OPTION_FLAG,  /* bool: set when given; takes no value */
    QN_OPTION_TEXT,  /* const char *: the value as it stands */
    QN_OPTION_TEXTS, /* qn_texts: every value of an option that may be repeated */
    QN_OPTION_INT,   /* int64_t from min to max */
    QN_OPTION_INT32, /* int from min to max */
    QN_OPTION_SEED,  /* uint64_t, any; -1 is a new random one, or QN_NO_SEED if min is -1 */
    /* uint64_t: a number, which may have a fraction and K, M, G or T for powers of 1024; at least min bytes; "off" if
     * min is 1 */
    QN_OPTION_BYTES,
    QN_OPTION_NUMBER, /* float from min to max, finite */
    QN_OPTION_ENUM    /* const char *: one of `choices` */
} qn_option_kind;

typedef struct qn_option {
    unsigned commands;    /* QN_CMD_* that take it */
    const char *name;     /* "--temp" or "-n" */
    const char *alias;    /* another name, or NULL */
    const char *accepted; /* llama.cpp's name for the same, accepted and not listed; or NULL */
    qn_option_kind kind;
    size_t offset;              /* of its field in qn_args, which has the type of the kind */
    const char *value;          /* "N", for the help text; NULL for flags */
    const char *help;           /* one line */
    const char *more;           /* further sentences of the manual page, or NULL */
    double min, max;            /* numbers: inclusive */
    const char *const *choices; /* QN_OPTION_ENUM: NULL-terminated; QN_OPTION_INT: NULL, or a word for 0 */
} qn_option;

extern const qn_option qn_options[];
extern const size_t qn_n_options;

/* An option of another program that runs models, which quern does not have. */
typedef struct qn_foreign_option {
    const char *name, *alias; /* alias may be NULL */
    unsigned ignored_by;      /* commands that always behave that way: they accept it */
    const char *answer;       /* what to do instead: "use --device cuda ..." */
} qn_foreign_option;

extern const qn_foreign_option qn_foreign_options[];
extern const size_t qn_n_foreign_options;

/* ---- Parsing ---- */

typedef enum qn_args_result { QN_ARGS_OK, QN_ARGS_HELP, QN_ARGS_BAD } qn_args_result;

/* qn_args_parse - parse the arguments of a command; argv[0] is its name and is skipped; `args` has its defaults.
 * QN_ARGS_HELP: --help was given and answered on standard output. QN_ARGS_BAD: the reason was printed. */
qn_args_result qn_args_parse(const qn_command *command, int argc, char **argv, qn_args *args);

/* qn_args_has - whether an option on the command line has set the field at an offset of qn_args. */
bool qn_args_has(const qn_args *args, size_t offset);

/* qn_args_has_sampling - whether an option has set how tokens are sampled; a seed alone does not count. */
bool qn_args_has_sampling(const qn_args *args);

/* qn_args_put_sampling - copy the values that options have set, except the seed, into `sampling`. */
void qn_args_put_sampling(const qn_args *args, qn_sampling *sampling);

/* qn_args_take_model - without -m, take the first operand as the model if there are more operands than the `n_others`
 * of the command itself, or if it looks like a model: a file that begins as GGUF files do, a name that ends in ".gguf",
 * an address of the hub, or a name of the hub with a ':' or "gguf" in it. */
void qn_args_take_model(qn_args *args, size_t n_others);

/* qn_args_check_prompt - returns QN_ARGS_BAD, with the reason printed, if the prompt that is the only operand left may
 * have been meant as a model: a GGUF file next to a model, or without one a name of the hub, or of ollama. */
qn_args_result qn_args_check_prompt(const char *command, const qn_args *args);

/* qn_args_no_more - returns QN_ARGS_BAD, with the reason printed, if there are more than `n` operands. */
qn_args_result qn_args_no_more(const char *command, const qn_args *args, size_t n);

/* qn_print_help - print the help text of a command. */
void qn_print_help(const qn_command *command);

/* qn_print_man - print the OPTIONS section of the manual page, in mdoc. */
void qn_print_man(void);

/* qn_print_completion - print completion code for a shell, "bash", "zsh" or "fish". False: another shell. */
bool qn_print_completion(const char *shell);

/* qn_nearest_command - returns the command whose name is a typing mistake away from `name`, or NULL. */
const char *qn_nearest_command(const char *name);

/* qn_args_hide - overwrite a secret given on the command line, which all users can read in the list of processes.
 * Whoever reads the list before this call sees it. */
void qn_args_hide(const char *text);

#endif
