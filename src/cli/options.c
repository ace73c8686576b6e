/* The table of all commands' options. An option with several meanings has a row for each. */
#include "cli/args.h"

#include "cli/cli.h"
#include "engine/spec/drafter.h"

#define AT(field) offsetof(qn_args, field)

enum {
    RUN = QN_CMD_RUN,
    CHAT = QN_CMD_CHAT,
    BENCH = QN_CMD_BENCH,
    BENCH_SERVE = QN_CMD_BENCH_SERVE,
    PERPLEXITY = QN_CMD_PERPLEXITY,
    TOKENIZE = QN_CMD_TOKENIZE,
    LOGITS = QN_CMD_LOGITS,
    INFO = QN_CMD_INFO,
    QUANTIZE = QN_CMD_QUANTIZE,
    KERNELS = QN_CMD_KERNELS,
    BATCH = QN_CMD_BATCH,
    CONVERT = QN_CMD_CONVERT,
    GRAFT = QN_CMD_GRAFT,
    PULL = QN_CMD_PULL,
    SERVE = QN_CMD_SERVE,
    GENERATE = RUN | CHAT,
    SAMPLE = GENERATE | SERVE | BENCH,
    EVALUATE = GENERATE | SERVE | BATCH | BENCH | PERPLEXITY | LOGITS
};

/* Rows: commands, name, alias, llama.cpp's name, field, ... */
#define FLAG(commands, name, alias, accepted, field, help, more)                                                       \
    {                                                                                                                  \
        commands, name, alias, accepted, QN_OPTION_FLAG, AT(field), NULL, help, more, 0, 0, NULL                       \
    }
#define TEXT(commands, name, alias, accepted, field, value, help, more)                                                \
    {                                                                                                                  \
        commands, name, alias, accepted, QN_OPTION_TEXT, AT(field), value, help, more, 0, 0, NULL                      \
    }
#define TEXTS(commands, name, alias, accepted, field, value, help, more)                                               \
    {                                                                                                                  \
        commands, name, alias, accepted, QN_OPTION_TEXTS, AT(field), value, help, more, 0, 0, NULL                     \
    }
#define INT(commands, name, alias, accepted, field, value, min, max, help, more)                                       \
    {                                                                                                                  \
        commands, name, alias, accepted, QN_OPTION_INT, AT(field), value, help, more, min, max, NULL                   \
    }
#define INT_OR(commands, name, alias, accepted, field, value, min, max, words, help, more)                             \
    {                                                                                                                  \
        commands, name, alias, accepted, QN_OPTION_INT, AT(field), value, help, more, min, max, words                  \
    }
#define INT32(commands, name, alias, accepted, field, value, min, max, help, more)                                     \
    {                                                                                                                  \
        commands, name, alias, accepted, QN_OPTION_INT32, AT(field), value, help, more, min, max, NULL                 \
    }
#define SEED(commands, name, alias, accepted, field, value, min, help, more)                                           \
    {                                                                                                                  \
        commands, name, alias, accepted, QN_OPTION_SEED, AT(field), value, help, more, min, 0, NULL                    \
    }
#define BYTES(commands, name, alias, accepted, field, value, min, help, more)                                          \
    {                                                                                                                  \
        commands, name, alias, accepted, QN_OPTION_BYTES, AT(field), value, help, more, min, 0, NULL                   \
    }
#define BYTES_TO(commands, name, alias, accepted, field, value, min, max, help, more)                                  \
    {                                                                                                                  \
        commands, name, alias, accepted, QN_OPTION_BYTES, AT(field), value, help, more, min, max, NULL                 \
    }
#define NUMBER(commands, name, alias, accepted, field, value, min, max, help, more)                                    \
    {                                                                                                                  \
        commands, name, alias, accepted, QN_OPTION_NUMBER, AT(field), value, help, more, min, max, NULL                \
    }
#define CHOICE(commands, name, alias, accepted, field, value, choices, help, more)                                     \
    {                                                                                                                  \
        commands, name, alias, accepted, QN_OPTION_ENUM, AT(field), value, help, more, 0, 0, choices                   \
    }

const char *const qn_kv_names[] = { "f32",     "f16",     "aura8", "aura6", "aura4",
                                    "aura4v3", "aura4v2", "aura3", "aura2", NULL };
const char *const qn_json_spaces[] = { "default", "indent", "compact", "any", NULL };
const char *const qn_json_orders[] = { "schema", "any", NULL };
const char *const qn_jumps[] = { "auto", "on", "off", NULL };
static const char *const automatic[] = { "auto", NULL };
static const char *const formats[] = { "table", "json", NULL };
static const char *const apis[] = { "chat", "completions", NULL };
static const char *const log_formats[] = { "text", "json", NULL };
static const char *const scopes[] = { "key", "all", NULL };
static const char *const reasoning_views[] = { "show", "fold", "hide", NULL };
static const char *const switches[] = { "on", "off", "auto", NULL };
static const char *const block_types[] = { "keep", "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", NULL };
static const char *const numas[] = { "off", "distribute", "isolate", "numactl", NULL };
static const char *const poolings[] = { "mean", "cls", "last", NULL };
static const char *const efforts[] = { "none", "minimal", "low", "medium", "high", "xhigh", "max", NULL };

const qn_option qn_options[] = {
    TEXT(
        GENERATE | BATCH, "-m", "--model", "-hf", model, "FILE",
        "the model, a GGUF file or OWNER/REPO[:FILE | :TYPE] (default: the demo model)",
        "OWNER/REPO is a model of the Hugging Face hub, which is downloaded unless it is in the cache (quern pull); "
        "@REVISION after REPO selects a branch, tag or commit, and addresses such as hf.co/OWNER/REPO are taken, too. "
        "Any of them may also be given without -m, as the first operand; as the only operand of run, a name of the hub "
        "needs a ':' or gguf in it. "
        "For a model split over several files, NAME-00001-of-0000N.gguf and so on, name any one; all must be in the "
        "same folder. The demo model is quern-demo.gguf in ../models or ../share/quern relative to the folder of the "
        "program, else in the data folder that quern was built for."),
    TEXTS(SERVE, "-m", "--model", "-hf", models, "FILE",
          "the model, a GGUF file or OWNER/REPO[:FILE | :TYPE] (default: the demo model); may be repeated",
          "As for the other commands. With several models, each is loaded when a request first names it, and requests "
          "must name one of them exactly."),
    TEXT(SERVE, "--models-dir", NULL, NULL, models_dir, "DIR", "serve every GGUF file in this folder, by its name",
         "Without .gguf, and without the number of a split model. New files are found when a request names them, or "
         "after SIGHUP. Drafters and projectors are not served."),
    INT(SERVE, "--models-max", NULL, NULL, models_max, "N", 1, 256, "maximum number of models loaded at a time",
        "Default: as many as --memory holds, or 1 on a GPU without it. When another model is wanted, the one used "
        "longest ago is freed after its requests have ended."),
    INT(SERVE, "--models-stay", NULL, NULL, models_stay, "S", 0, 86400,
        "seconds that a model stays loaded when another is wanted (default 5)",
        "Requests for the other model wait. So clients that alternate between models do not keep the server loading."),
    TEXT(BENCH | PERPLEXITY | TOKENIZE | LOGITS | INFO, "-m", "--model", "-hf", model, "FILE",
         "the model, a GGUF file or OWNER/REPO[:FILE | :TYPE]", NULL),

    TEXT(RUN, "-p", "--prompt", NULL, prompt, "TEXT", "the prompt", "It may also be given without -p, as an operand."),
    TEXT(CHAT, "-p", "--prompt", NULL, prompt, "TEXT", "the first message",
         "It may also be given without -p, as an operand. The conversation then goes on."),
    TEXT(RUN, "-f", "--file", NULL, file, "FILE", "read the prompt from a file; - is standard input",
         "One newline at its end and a byte order mark at its beginning are not part of the prompt."),
    INT(GENERATE, "-n", "--predict", "--n-predict", n_predict, "N", -1, INT32_MAX,
        "maximum new tokens, in chat per answer (default -1: no limit)", NULL),
    FLAG(RUN, "--chat", NULL, NULL, chat, "the prompt is a user's turn in the model's chat format",
         "Its text is never read as special tokens."),
    TEXT(RUN, "--system", NULL, "--system-prompt", system, "TEXT", "with --chat: the system's turn before it", NULL),
    TEXT(CHAT, "--system", NULL, "--system-prompt", system, "TEXT", "the system's turn", NULL),
    TEXT(GENERATE | SERVE | BATCH | TOKENIZE, "--chat-template", NULL, "--chat-template-file", chat_template, "FILE",
         "a chat template to use instead of the model's", "Jinja, as transformers runs it."),
    CHOICE(CHAT, "--reasoning", NULL, NULL, reasoning, "VIEW", reasoning_views,
           "show, fold or hide reasoning (default: fold on a terminal, else show)",
           "show prints it, dimmed on a terminal and elsewhere between the template's delimiters; fold is one line on "
           "a terminal with the number of tokens and the time."),
    CHOICE(SERVE | BATCH, "--reasoning", NULL, "-rea", thinking, "STATE", switches,
           "reasoning where a conversation does not say: on, off or auto, as its template has it (default auto)",
           "on and off set the template's enable_thinking. A request's own enable_thinking, reasoning or "
           "reasoning_effort has priority."),
    CHOICE(
        GENERATE | SERVE | BATCH, "--reasoning-effort", NULL, NULL, reasoning_effort, "LEVEL", efforts,
        "level of reasoning where a conversation names none: none, minimal, low, medium, high, xhigh or max",
        "Default: the middle one of the levels that the chat template knows (quern info), medium where it is one, and "
        "the template's own where it knows fewer than two. none turns thinking off where the template can."),
    INT(GENERATE | SERVE | BATCH, "--reasoning-budget", NULL, NULL, reasoning_budget, "N", -1, INT32_MAX,
        "maximum tokens of reasoning (default -1: no limit)",
        "Reasoning is then ended with the words of the model's chat template, which count as new tokens, and the "
        "answer continues. A request's own limit has priority."),
    INT(GENERATE | LOGITS, "-c", "--ctx", "--ctx-size", context, "N", 1, 1 << 30,
        "context: maximum tokens (default: the model's, or what memory holds)",
        "The model's context is the one it was trained for; a note is printed if N is larger."),
    INT(BATCH, "-c", "--ctx", "--ctx-size", context, "N", 1, 1 << 30,
        "context: tokens of a request and its answer (default: the model's)", NULL),
    INT(SERVE, "-c", "--ctx", "--ctx-size", context, "N", 1, 1 << 30,
        "context: tokens of a request and its answer (default: the model's)",
        "It is reduced to what the memory holds."),
    INT(PERPLEXITY, "-c", "--ctx", "--ctx-size", context, "N", 8, 1 << 30, "tokens in a piece (default 512)", NULL),
    INT_OR(
        EVALUATE | QUANTIZE | CONVERT | GRAFT, "-t", "--threads", NULL, threads, "N", 1, 1024, automatic,
        "threads (default: auto)",
        "auto is one for each core, but for cores too slow to help, or as many as a quota of processor time pays for, "
        "and fewer while other processes use the processors so that fewer are faster. quern kernels says what there is."),
    TEXT(GENERATE, "--load", NULL, NULL, load, "FILE", "continue the conversation in this session file",
         "The file was written by --save with the same model; the conversation continues as if it had never stopped. "
         "chat also takes a file of its command /save. "
         "run appends the prompt to it, with --chat as a user's turn; with an empty prompt, or none on a terminal, the "
         "model continues by itself. -c may differ from the saved context, which is the default. A file that is "
         "damaged or belongs to another model is refused."),
    TEXT(GENERATE, "--save", NULL, NULL, save, "FILE", "write the conversation to this session file at the end",
         "After Ctrl-C, too. The file holds the tokens, the KV cache and recurrent states, and appears whole or not at "
         "all. An existing file is replaced only if it is empty or a session file. Writing is tried at the start; if "
         "it fails at the end, the conversation is saved to a file in the folder for temporary files, whose name is "
         "printed."),

    NUMBER(SAMPLE, "--temp", NULL, "--temperature", sampling.temperature, "T", 0, 1e6,
           "temperature (default 0.8); 0 is greedy", NULL),
    INT32(SAMPLE, "--top-k", NULL, NULL, sampling.top_k, "K", 0, INT32_MAX,
          "keep the K most likely tokens (default 40); 0 keeps all", NULL),
    NUMBER(SAMPLE, "--top-p", NULL, NULL, sampling.top_p, "P", 1e-9, 1,
           "keep the most likely tokens up to this probability (default 0.95)", NULL),
    NUMBER(SAMPLE, "--min-p", NULL, NULL, sampling.min_p, "P", 0, 0.999999,
           "drop tokens less likely than P times the most likely (default 0.05)", NULL),
    NUMBER(SAMPLE, "--typical", "--typical-p", NULL, sampling.typical_p, "P", 0, 1,
           "keep the tokens nearest to the expected surprisal up to this probability (default 1: off)", NULL),
    NUMBER(SAMPLE, "--top-n-sigma", NULL, "--top-nsigma", sampling.top_n_sigma, "N", 0, 1e6,
           "keep tokens with logits within N standard deviations of the largest (default 0: off)", NULL),
    NUMBER(SAMPLE, "--xtc-probability", NULL, NULL, sampling.xtc_probability, "P", 0, 1,
           "with this probability drop all likely tokens except the least likely one (default 0)", NULL),
    NUMBER(SAMPLE, "--xtc-threshold", NULL, NULL, sampling.xtc_threshold, "P", 0, 1,
           "minimum probability of a likely token for XTC (default 0.1)", NULL),
    INT32(SAMPLE, "--mirostat", NULL, NULL, sampling.mirostat, "V", 0, 2,
          "2: Mirostat 2.0 instead of the filters (default 0: off)", "On the CPU. Version 1 is not supported."),
    NUMBER(SAMPLE, "--mirostat-ent", NULL, NULL, sampling.mirostat_tau, "N", 0, 100,
           "Mirostat's target surprise in bits, tau (default 5)", NULL),
    NUMBER(SAMPLE, "--mirostat-lr", NULL, NULL, sampling.mirostat_eta, "N", 0, 100,
           "Mirostat's learning rate, eta (default 0.1)", NULL),
    NUMBER(SAMPLE, "--dry-multiplier", NULL, NULL, sampling.dry_multiplier, "X", 0, 1e6,
           "DRY: make tokens that repeat longer sequences less likely (default 0: off)",
           "A token that would extend a repetition of n tokens loses X * base^(n - length) from its logit."),
    NUMBER(SAMPLE, "--dry-base", NULL, NULL, sampling.dry_base, "X", 1, 1e6, "DRY's base (default 1.75)", NULL),
    INT32(SAMPLE, "--dry-allowed-length", NULL, NULL, sampling.dry_allowed_length, "N", 0, 1000,
          "DRY's length: repetitions of fewer than N tokens are free (default 2)", NULL),
    INT32(SAMPLE, "--dry-penalty-last-n", NULL, NULL, sampling.dry_penalty_last_n, "N", -1, INT32_MAX,
          "number of recent tokens that DRY looks at (default -1: all)", NULL),
    TEXTS(SAMPLE, "--dry-sequence-breaker", NULL, NULL, dry_breakers, "TEXT",
          "a text that ends a sequence for DRY, or none; may be repeated",
          "Replaces the defaults: a newline, a colon, a quotation mark and an asterisk. The text is used as it is: a "
          "newline is $'\\n' of the shell."),
    NUMBER(SAMPLE, "--repeat-penalty", NULL, NULL, sampling.repeat_penalty, "X", 1e-3, 1e3,
           "above 1: make recent tokens less likely (default 1: off)", NULL),
    INT32(SAMPLE, "--repeat-last-n", NULL, NULL, sampling.repeat_last_n, "N", 0, INT32_MAX,
          "number of recent tokens for --repeat-penalty (default 64)", NULL),
    NUMBER(SAMPLE, "--frequency-penalty", NULL, NULL, sampling.frequency_penalty, "X", -2, 2,
           "subtract X from a logit for each time the token was generated (default 0)", NULL),
    NUMBER(SAMPLE, "--presence-penalty", NULL, NULL, sampling.presence_penalty, "X", -2, 2,
           "subtract X from the logits of tokens that were generated (default 0)", NULL),
    SEED(GENERATE, "--seed", NULL, "-s", sampling.seed, "S", 0, "seed of the sampler (default -1: a new one each time)",
         "The same seed, model and prompt give the same text."),
    SEED(BENCH, "--seed", NULL, "-s", sampling.seed, "S", 0, "seed of the sampler (default 1); -1 is a new one",
         "Of the first sequence; each has its own. The same ones are drawn in every repetition."),
    SEED(SERVE, "--seed", NULL, "-s", sampling.seed, "S", -1,
         "seed of requests that have none (default -1: a new one each time)", NULL),
    TEXTS(GENERATE, "--stop", NULL, "--reverse-prompt", stop, "TEXT", "stop where this text appears; may be repeated",
          "The text is not printed."),
    TEXTS(RUN, "--stop-token", NULL, NULL, stop_tokens, "ID", "stop where this token is generated; may be repeated",
          "An id as printed by quern tokenize --ids. The token's text is not printed."),
    INT(RUN, "--min-tokens", NULL, NULL, min_tokens, "N", 0, INT32_MAX, "do not stop before N new tokens (default 0)",
        "Until then tokens that end the text are not sampled, and --stop texts are printed. A grammar or schema that "
        "allows only the end still ends the text."),
    TEXT(BENCH, "--json-schema", NULL, "--json-schema-file", json_schema, "FILE",
         "also decode JSON that fits the schema in this file, or the schema itself, as in run",
         "When a document is complete, another one begins, until -n tokens are decoded."),
    TEXT(RUN, "--json-schema", NULL, "--json-schema-file", json_schema, "FILE",
         "the text is JSON that fits the schema in this file, or the schema itself",
         "A value that begins with { is a schema, any other a file. Unsupported keywords are an error. With --chat it "
         "holds for the answer; reasoning before it is free."),
    CHOICE(RUN | BENCH, "--json-whitespace", NULL, NULL, json_space, "HOW", qn_json_spaces,
           "with --json-schema: default, indent, compact or any",
           "default is the format of Python's json.dumps, indent that with indent=2; any leaves white space to the "
           "model."),
    CHOICE(RUN | BENCH, "--json-property-order", NULL, NULL, json_order, "ORDER", qn_json_orders,
           "with --json-schema: properties in the order of the schema, or any", NULL),
    TEXT(RUN, "--grammar", NULL, "--grammar-file", grammar, "FILE",
         "the text fits the grammar in this file, or the grammar itself (GBNF)",
         "A value with ::= is a grammar, any other a file. The syntax is llama.cpp's, without token literals; the text "
         "is what the rule root derives."),
    TEXT(RUN, "--choices", NULL, NULL, choices, "LIST", "the text is one of this list, as in yes,no",
         "For a choice with a comma use --grammar."),
    CHOICE(RUN | BENCH, "--jump-forward", NULL, NULL, jump_forward, "HOW", qn_jumps,
           "evaluate text that the grammar or schema forces in one step: auto, on, off",
           "The text is the same. auto is on with the CPU for one sequence."),
    CHOICE(
        GENERATE | SERVE | BATCH, "--draft", NULL, NULL, draft, "KIND", qn_draft_names,
        "tokens that a step evaluates ahead: auto, off, ngram, mtp, dflash or model (default auto)",
        "Only tokens that would have come one by one are kept: the text is the same. ngram drafts what followed the "
        "same words before; mtp is the model's block for multi-token prediction, if it has one, or that of a file; "
        "model is what a small model writes, dflash a block drafter (--draft-model). auto is ngram and one of the others on the CPU, "
        "on a GPU that of a --draft-model or off. Tokens are drafted while that is measured to be faster."),
    CHOICE(BENCH, "--draft", NULL, NULL, draft, "KIND", qn_draft_names,
           "also measure decoding with drafts, as in run: auto, off, ngram, mtp, dflash or model (default off)",
           "The tokens of a benchmark mean nothing; see --accept."),
    TEXT(
        GENERATE | SERVE | BATCH | BENCH, "--draft-model", NULL, "-md", draft_model, "FILE",
        "a drafter: a small model with the same vocabulary, a block drafter (dflash) or an MTP block alone",
        "A GGUF file, or OWNER/REPO[:FILE or TYPE] of the hub; a small model may have any architecture that quern runs. "
        "On the CPU and on CUDA devices; a small model's caches take a part of --memory. A block for multi-token prediction, as quern graft "
        "would join it, takes the place of the model's own. A file that cannot serve is an error that says why. Not "
        "with --draft off or ngram, nor with several models."),
    NUMBER(BENCH, "--accept", NULL, NULL, accept, "R", 0, 1,
           "with --draft: accept each drafted token with this chance (default 0: if it is sampled)", NULL),
    INT(BENCH, "--draft-tokens", NULL, NULL, draft_tokens, "N", 1, 15,
        "with --draft: most tokens of a draft (default 15)", NULL),
    FLAG(RUN, "--ignore-eos", NULL, NULL, ignore_end, "continue past the end of the text", NULL),

    INT(BENCH, "-p", "--n-prompt", NULL, n_prompt, "N", 0, 1 << 24,
        "tokens of the prompt (default 512); 0 skips the test", NULL),
    INT(BENCH, "-n", "--n-gen", NULL, n_generate, "N", 0, 1 << 24, "tokens to decode (default 128); 0 skips the test",
        NULL),
    INT(BENCH, "-d", "--depth", "--n-depth", depth, "N", 0, 1 << 24, "tokens of context before each test (default 0)",
        NULL),
    INT(BENCH, "-r", "--repetitions", NULL, repetitions, "N", 1, QN_BENCH_MAX_REPETITIONS,
        "repetitions of a test (default 5)", NULL),
    TEXT(BENCH, "--parallel", NULL, "-np", parallel, "LIST", "numbers of sequences decoded together, as in 1,8,32",
         "For each number, all prompts are evaluated, then each step decodes one token of each sequence, as in a "
         "scheduler. Rates are those of all sequences together. Each sequence has its own prompt."),
    TEXT(BENCH, "--soak", NULL, NULL, soak, "FILE", "requests that arrive over time, with lengths from a file",
         "Each line has the numbers of tokens of a prompt and of its answer. With --rate requests arrive at random "
         "times; otherwise each of --parallel clients sends its next request after its last answer. Prints percentiles "
         "of the time to the first token and between tokens."),
    TEXT(BENCH, "--reuse", NULL, NULL, reuse, "P,N", "measure what reused prefixes save, as in 8000,100",
         "Runs a conversation whose first prompt has P tokens and whose second turn adds N tokens after the answer "
         "(-n); then three requests that share P tokens and have N tokens of their own. Prints the evaluated tokens "
         "and the time to the first token of each."),
    NUMBER(BENCH, "--rate", NULL, NULL, rate, "R", 0, 1e6, "with --soak: requests a second", NULL),
    FLAG(
        BENCH, "--profile", NULL, NULL, profile, "say after each test where its time went, by operation",
        "On the CPU and on Vulkan devices, where an operation is a launch or a few, and nothing waits. For each "
        "operation: seconds of all repetitions, milliseconds a step, and the share of the test's time; the seconds in which threads computed and in which they waited for others, summed over the threads; and "
        "the first of these over their sum. Matmuls have the columns and rows of their matrices in their names. With "
        "--parallel prompts and decoding are one profile."),
    CHOICE(
        BENCH, "--format", NULL, NULL, format, "FORMAT", formats, "table or json (default table)",
        "JSON is one object a line for each test, with the keys test, n_tokens, depth, threads, device, kv, "
        "parallel, tok_per_s (an object of median, min, max), bytes_per_token (weights, cache and states that "
        "decoding one token reads at that depth), read_gb_per_s (10^9 bytes a second; null when it could not be "
        "measured) and peak_rss_bytes; with --profile also profile (an object of seconds, outside_seconds, steps, "
        "threads and operations, a list of objects of name, seconds, computing, waiting, parallel); of decoding also sampling (an object of temperature, top_k, top_p, min_p, "
        "typical_p, top_n_sigma, xtc_probability, xtc_threshold, mirostat, mirostat_tau, mirostat_eta, "
        "dry_multiplier, dry_base, dry_allowed_length, dry_penalty_last_n, dry_sequence_breakers (a list of texts), "
        "repeat_penalty, repeat_last_n, frequency_penalty, presence_penalty, seed; null if it is greedy), "
        "json_schema (the option, or null), of_free (the rate over that of the row it is compared with, median of "
        "the repetitions; null without one), draft (the option), accept (the option, or null), drafted and accepted "
        "(tokens of all repetitions) and tokens_per_step (of a sequence)."),

    TEXT(BENCH_SERVE, "-m", "--model", NULL, model, "NAME",
         "the model's name in requests (default: the first that the server lists)", NULL),
    CHOICE(BENCH_SERVE, "--api", NULL, NULL, api, "API", apis, "chat or completions (default chat)",
           "The endpoint /v1/chat/completions or /v1/completions; answers are streamed."),
    TEXT(
        BENCH_SERVE, "--api-key", NULL, NULL, api_key, "KEY", "sent with every request, as a bearer token",
        "Other users of the machine may see it while the program starts; the environment variable QUERN_API_KEY has it "
        "without that."),
    INT(BENCH_SERVE, "--parallel", NULL, "-np", sequences, "N", 1, 4096,
        "clients, each of which waits for its answer before its next request (default 1)",
        "They begin a tenth of a second after one another."),
    NUMBER(BENCH_SERVE, "--rate", NULL, NULL, rate, "R", 1e-6, 1e6,
           "requests a second, at random times, instead of clients",
           "Times count from the moment when a request was due."),
    INT(BENCH_SERVE, "--requests", NULL, NULL, requests, "N", 1, 1 << 24,
        "requests to send (default 32, or the lines of --lengths)", NULL),
    INT(BENCH_SERVE, "-p", "--n-prompt", NULL, n_prompt, "N", 1, 1 << 24, "tokens of a prompt (default 512)", NULL),
    INT(BENCH_SERVE, "-n", "--n-gen", NULL, n_generate, "N", 1, 1 << 24, "tokens of an answer (default 128)", NULL),
    TEXT(BENCH_SERVE, "--lengths", NULL, NULL, lengths, "FILE",
         "lengths of requests; the list repeats from its beginning",
         "Each line has the numbers of tokens of a prompt and of its answer, as for quern bench --soak."),
    TEXT(BENCH_SERVE, "-f", "--file", NULL, file, "FILE",
         "take prompts from this text, each beginning at a random word; - is standard input",
         "Without it they are frequent English words in random order. Either way the server counts their tokens, and "
         "prompts have as many words as that needs."),
    SEED(BENCH_SERVE, "--seed", NULL, "-s", sampling.seed, "S", 0,
         "seed of prompts and arrivals (default 1); -1 is a new one", "If tokens are sampled it is also sent as seed."),
    NUMBER(BENCH_SERVE, "--temp", NULL, "--temperature", sampling.temperature, "T", 0, 1e6,
           "the requests' temperature (default 0)", NULL),
    INT32(BENCH_SERVE, "--top-k", NULL, NULL, sampling.top_k, "K", 0, INT32_MAX,
          "the requests' top_k (default: not sent)",
          "OpenAI's protocol does not have it; quern, vLLM, SGLang and llama.cpp do."),
    NUMBER(BENCH_SERVE, "--top-p", NULL, NULL, sampling.top_p, "P", 1e-9, 1, "the requests' top_p (default: not sent)",
           NULL),
    NUMBER(BENCH_SERVE, "--min-p", NULL, NULL, sampling.min_p, "P", 0, 0.999999,
           "the requests' min_p (default: not sent)", "Not part of OpenAI's protocol, as top_k."),
    TEXT(
        BENCH_SERVE, "--json-schema", NULL, "--json-schema-file", json_schema, "FILE",
        "the requests' response_format is the JSON schema in this file, or the schema itself; it is strict",
        "With ignore_eos quern begins another document when one is complete; answers of other servers may be shorter."),
    FLAG(BENCH_SERVE, "--may-end", NULL, NULL, may_end, "answers may end before their length",
         "Then ignore_eos, which is not part of OpenAI's protocol, is not sent."),
    INT(BENCH_SERVE, "--timeout", NULL, NULL, timeout, "S", 1, 1 << 20,
        "seconds after which a request fails (default 600)", NULL),
    CHOICE(BENCH_SERVE, "--format", NULL, NULL, format, "FORMAT", formats, "table or json (default table)",
           "JSON is one object with the keys test, url, model, api, requests, parallel (0 with --rate), rate, sent, "
           "answered, failed, cancelled, seconds, requests_per_s, tok_per_s (of answers), sampling (an object of the "
           "values sent: temperature, and top_k, top_p, min_p, seed if they were sent), json_schema (the option, or "
           "null), counted_by (usage, or events if the server counts no tokens), prompt_tokens, cached_tokens, "
           "completion_tokens; ttft_ms, inter_token_ms (between events with text), per_token_ms (of an answer's tokens "
           "after the first) and latency_ms, each null or an object of mean, p50, p95, p99, max, only for answered "
           "requests; and errors, an object of counts by kind."),

    TEXT(SERVE, "--host", NULL, NULL, host, "HOST", "the address to listen on (default 127.0.0.1)",
         "An address that other machines can reach needs keys, or --allow-unauthenticated. HOST counts as an "
         "--allowed-host."),
    INT(SERVE, "--port", NULL, NULL, port, "PORT", 0, 65535, "the port (default 8080); 0 is any free port",
        "The address is printed on standard output."),
    TEXTS(SERVE, "--alias", "-a", NULL, aliases, "NAME", "the model's name (default: that of its file); once per -m",
          "A single model answers to any name."),
    INT(SERVE, "--parallel", NULL, "-np", sequences, "N", 1, 4096,
        "requests evaluated at the same time (default 16; 64 on a GPU)", NULL),
    INT(SERVE, "--max-queued", NULL, NULL, max_queued, "N", 1, 1 << 20, "maximum requests that wait (default 512)",
        "Further requests are answered with 429."),
    CHOICE(SERVE, "--pooling", NULL, NULL, pooling, "POOLING", poolings,
           "how embeddings are made of the tokens' hidden states: mean, cls (the first) or last",
           "Default: as the model's file says, else last. A request's own `pooling` has priority."),
    INT(SERVE, "--max-tokens", NULL, "-n", max_tokens, "N", 1, INT32_MAX,
        "maximum tokens of an answer (default: the context)", NULL),
    TEXTS(SERVE, "--api-key", NULL, NULL, api_keys, "[NAME: ]KEY", "a key that requests need; may be repeated",
          "Other users of the machine may see it while the program starts; --api-key-file is safer. The name is for "
          "logs. If there are several keys, only the one named metrics may request /metrics."),
    TEXTS(SERVE, "--api-key-file", NULL, NULL, api_key_files, "FILE", "a file of keys, one per line; may be repeated",
          "A line is KEY or NAME: KEY; empty lines and lines that begin with # are ignored."),
    FLAG(SERVE, "--allow-unauthenticated", NULL, NULL, allow_unauthenticated, "other machines need no key", NULL),
    CHOICE(SERVE, "--prefix-cache-scope", NULL, NULL, prefix_scope, "SCOPE", scopes,
           "key or all: who shares kept prefixes of prompts (default key)",
           "The time of an answer reveals whether an earlier prompt began alike: with key, prefixes are shared only "
           "between requests with the same API key."),
    TEXTS(SERVE, "--allowed-host", NULL, NULL, allowed_hosts, "NAME", "a name of this server; may be repeated",
          "Requests whose Host header is not an address, localhost or one of these names are refused: they may come "
          "from a web page whose name resolves to this machine (DNS rebinding)."),
    TEXTS(SERVE, "--cors-origin", NULL, NULL, cors_origins, "ORIGIN",
          "pages of this origin may use the server; may be repeated", "As https://name:port; * allows any."),
    FLAG(SERVE, "--no-slots", NULL, NULL, no_slots, "do not tell clients of the requests that are evaluated (/slots)",
         NULL),
    FLAG(SERVE, "--no-page", NULL, "--no-ui", no_page, "serve no chat page at /", NULL),
    TEXT(SERVE, "--tls-cert", NULL, "--ssl-cert-file", tls_cert, "FILE",
         "the certificate and its chain, in PEM; serves https", NULL),
    TEXT(SERVE, "--tls-key", NULL, "--ssl-key-file", tls_key, "FILE", "the certificate's key, in PEM", NULL),
    BYTES(SERVE, "--max-body", NULL, NULL, max_body, "SIZE", 1024, "maximum bytes of a body (default 16M)",
          "Longer bodies are answered with 413."),
    BYTES_TO(SERVE, "--max-header", NULL, NULL, max_header, "SIZE", 1024, 256 << 10,
             "maximum bytes of a request's headers (default 16K, at most 256K)",
             "Longer headers are answered with 431. Each connection has memory for twice this size."),
    INT(SERVE, "--max-connections", NULL, NULL, max_connections, "N", 1, 1 << 20, "maximum connections (default 1024)",
        "With more, one that waits for its client is closed, connections without a valid key first."),
    INT(SERVE, "--max-per-address", NULL, NULL, max_per_address, "N", 1, 1 << 20,
        "maximum connections per address (default 64; this machine: half of --max-connections, if more)", NULL),
    INT(SERVE, "--header-timeout", NULL, NULL, header_timeout, "S", 1, 86400,
        "seconds for the headers of a request to arrive (default 10)", NULL),
    INT(SERVE, "--body-timeout", NULL, NULL, body_timeout, "S", 1, 86400,
        "seconds for its body to arrive after the headers (default 60)", NULL),
    INT(SERVE, "--idle-timeout", NULL, NULL, idle_timeout, "S", 1, 86400,
        "seconds that a connection may wait for its next request (default 75)", NULL),
    INT(SERVE, "--drain", NULL, NULL, drain, "S", 0, 86400,
        "seconds to finish requests in after SIGTERM or Ctrl-C (default 30)",
        "Streams that have not ended then end with an error."),
    TEXT(SERVE, "--access-log", NULL, NULL, access_log, "FILE",
         "write a line for each request to this file (default: standard error)",
         "Each line is a JSON object with time, id, address, key, method, path, status, bytes, tokens and seconds."),
    CHOICE(SERVE, "--log-format", NULL, NULL, log_format, "FORMAT", log_formats,
           "text or json: lines of requests (default: text on a terminal, else json)",
           "A line of text has the time, method, path, status, tokens, seconds, address and the key's name."),

    INT(BATCH, "--parallel", NULL, "-np", sequences, "N", 1, 4096,
        "requests evaluated at the same time (default 16; 64 on a GPU)", NULL),
    FLAG(BATCH, "--resume", NULL, NULL, resume, "continue OUT: answer the requests that it has no line for",
         "Requests are recognised by their custom_id. An incomplete last line of OUT is removed."),
    FLAG(BATCH, "--ordered", NULL, NULL, ordered, "write the lines of OUT in the order of IN",
         "A finished answer then waits in memory for those before it."),

    TEXT(PERPLEXITY, "-f", "--file", NULL, file, "FILE", "the text; - is standard input", NULL),
    INT(PERPLEXITY, "--limit-bytes", NULL, NULL, limit_bytes, "N", 1, 1e15, "read only the first N bytes of the text",
        NULL),
    TEXT(
        PERPLEXITY, "--save-logits", NULL, "--save-all-logits", save_logits, "FILE",
        "also write the log probabilities of all tokens, for --kl-divergence",
        "The format is llama-perplexity's: 2 bytes a token of the vocabulary and scored position. The files hold 16-bit "
        "codes, and no log probability further than 16 below a position's largest."),
    TEXT(
        PERPLEXITY, "--kl-divergence", NULL, "--kl-divergence-base", kl_divergence, "BASE",
        "compare with the predictions of BASE: a file of --save-logits, or a model",
        "Prints the statistics of llama-perplexity: both perplexities with their ratio and correlation; the "
        "Kullback-Leibler divergence of the model's probabilities from the base's, its mean and percentiles; the change "
        "of the text's tokens' probability (\xce\x94p); and how often the most likely token is the same in both. A file also "
        "holds the text's tokens and -c; llama-perplexity's files are read too. A model is evaluated with a KV cache in "
        "f16, on the text of -f. After the statistics of several measurements follows a table with a row for each."),
    TEXTS(PERPLEXITY, "--compare", NULL, NULL, compare, "FILE",
          "with --kl-divergence: a further model to measure; may be repeated",
          "As the model of another weight type. All models are in memory at the same time."),

    FLAG(TOKENIZE, "--ids", NULL, NULL, ids_only, "print ids only", NULL),
    TEXT(TOKENIZE, "-f", "--file", NULL, file, "FILE", "read the text from a file; - is standard input", NULL),
    TEXT(TOKENIZE, "--chat", NULL, NULL, conversation, "FILE", "a conversation in JSON; - is standard input",
         "An object with messages and, optionally, tools, add_generation_prompt, enable_thinking, reasoning_effort and "
         "other variables of the chat template. SOURCE_DATE_EPOCH, if set, is the current time for the template."),
    FLAG(TOKENIZE, "--text", NULL, NULL, text_only, "with --chat: print the conversation's text, and nothing else",
         NULL),
    FLAG(TOKENIZE, "--bos", NULL, NULL, bos, "begin with the beginning-of-text token, if the model uses one", NULL),
    FLAG(TOKENIZE, "--no-special", NULL, NULL, no_special, "special tokens written in the text are plain text", NULL),

    TEXT(LOGITS, "--ids", NULL, NULL, ids, "LIST", "token ids, separated by commas or spaces", NULL),
    TEXT(LOGITS, "-o", "--output", NULL, output, "FILE", "where the logits go",
         "An existing file is replaced only if it is empty or holds logits."),
    INT(LOGITS, "--batch", NULL, NULL, batch, "N", 1, INT32_MAX, "ids evaluated at a time (default: all)", NULL),

    INT(GENERATE | SERVE | BATCH | BENCH | PERPLEXITY, "--batch", NULL, "--ubatch-size", batch, "N", 1, 4096,
        "rows of a step (default 128; 2048 on a GPU)",
        "It changes memory use and speed; on the CPU it never changes results."),
    TEXT(PERPLEXITY, "--kv", NULL, NULL, kv, "TYPE", "format of the KV cache (default f16), or a list of them",
         "As for the other commands. A list, such as f16,aura4,aura3, needs --kl-divergence."),
    CHOICE(
        EVALUATE & ~PERPLEXITY, "--kv", NULL, NULL, kv, "TYPE", qn_kv_names, "format of the KV cache (default f16)",
        "f16; f32, which rounds nothing and takes twice the memory, for comparisons and on the CPU only; or AURA codes "
        "with the given number of bits per value: aura8, aura6, aura4, aura3, aura2; aura4v3 and aura4v2 have fewer "
        "bits for values than for keys. Codes need heads of 64, 80, 96, 128, 192, 256 or 512 values, and no large "
        "biases (Qwen2.5 has them); other models keep f16, and a note says so. Without the option, run, chat, serve and "
        "batch use aura8 or aura4 where the memory does not hold the tokens of -c in f16 (without -c 32768, or the "
        "training context if that is less), and a note says so. A session file keeps the format it was saved with."),
    BYTES(EVALUATE & ~SERVE, "--memory", NULL, NULL, memory, "SIZE", 1 << 22,
          "memory for KV caches and states, as in 8G (default: half of the free memory)",
          "Pages are taken from it as conversations grow, and given back. Weights do not count. On a GPU the default "
          "is most of the device's free memory."),
    BYTES(SERVE, "--memory", NULL, NULL, memory, "SIZE", 1 << 22,
          "memory for KV caches and states, as in 8G (default: half of the free memory)",
          "Pages are taken from it as conversations grow, and given back. Weights do not count. On a GPU the default "
          "is most of the device's free memory. With several models it is the limit for all loaded models, weights "
          "included; the default is then nine tenths of the free memory."),
    BYTES(SERVE | BATCH | BENCH, "--prefix-cache", NULL, NULL, prefix_cache, "SIZE", 1,
          "memory for recurrent states kept for reuse, or off",
          "Prefixes of finished requests are kept while there is memory, and requests that begin alike reuse them. For "
          "hybrid models this needs a state at the position where two requests differ; the default is a quarter of "
          "--memory. In bench it is for --soak."),
    BYTES(SERVE | BATCH | BENCH, "--prefix-host", NULL, NULL, prefix_host, "SIZE", 1 << 22,
          "host memory to which a full GPU moves kept prefixes, or off",
          "Prefixes and requests that were set aside are copied back when needed. The default is a quarter of the "
          "available memory. Ignored on the CPU."),
    FLAG(EVALUATE, "--deterministic", NULL, NULL, deterministic,
         "on a GPU, results that do not depend on what else is evaluated",
         "Slower: tokens are decoded as rows of larger steps, and prompts are evaluated 64 tokens at a time. Only for "
         "models whose weights all have one or two bits. On the CPU this is always so."),
    TEXT(EVALUATE | KERNELS | INFO, "--device", NULL, NULL, device, "NAME",
         "cpu, cuda, cuda:N (the N-th GPU, from 0), vulkan, vulkan:N or auto (default)",
         "auto is the first CUDA GPU that can run the model, else a discrete Vulkan GPU that can, else the CPU. quern "
         "devices lists all of them."),

    CHOICE(EVALUATE, "--numa", NULL, NULL, numa, "MODE", numas,
           "on machines with several NUMA nodes: off, distribute or isolate (default off)",
           "distribute puts weights and caches on all nodes in turn, page by page; isolate keeps threads, and so the "
           "memory that they write first, on the node that the program started on. Pages of the file that are in the "
           "page cache already stay where they are. numactl is off: what numactl has set holds."),
    FLAG(INFO, "--plan", NULL, NULL, plan, "print the operations that run the model",
         "Each with its layer, the bytes of weights that a token reads, what it is fused into by the persistent decode "
         "kernel of GPUs, its buffers (b) and activations (a) with their widths, > before those that it writes and + "
         "before those that it updates, and its weights."),
    FLAG(KERNELS, "--clear", NULL, NULL, clear, "remove all kernels compiled and cached on this machine", NULL),
    FLAG(QUANTIZE | CONVERT, "--force", NULL, NULL, force,
         "write a type of 1 or 2 bits even if it cannot hold the weights",
         "The model will not be usable: weights must be trained for such types."),
    CHOICE(GRAFT, "--type", NULL, NULL, type, "TYPE", block_types,
           "weight type of the block's matrices: keep, f32, f16, bf16, q8_0, q4_0 or q4_1 (default q8_0)",
           "keep leaves each matrix in the type that it has."),
    FLAG(QUANTIZE, "-v", "--verbose", NULL, verbose, "name each tensor that keeps a wider type", NULL),
    FLAG(GENERATE | SERVE | BATCH, "-v", "--verbose", NULL, verbose, "say how many tokens of context fit in memory",
         NULL),
    FLAG(BENCH, "-v", "--verbose", NULL, verbose,
         "say how many tokens of context fit, how long a GPU waits between steps, what drafts cost", NULL),
    FLAG(GENERATE, "-q", "--quiet", NULL, quiet, "no notes, no greeting and no speed line", NULL),
    FLAG(SERVE, "-q", "--quiet", NULL, quiet, "no notes, and no log on standard error", NULL),
    FLAG(BATCH, "-q", "--quiet", NULL, quiet, "no notes and no summary", NULL),
    FLAG(PULL, "-q", "--quiet", NULL, quiet, "no notes and no progress", NULL),
};
const size_t qn_n_options = sizeof qn_options / sizeof *qn_options;
_Static_assert(sizeof qn_options / sizeof *qn_options <= QN_MAX_OPTIONS, "qn_args.is_given has a place for each");
