/* The table of commands. */
#include "cli/args.h"

#include "cli/cli.h"

#include <string.h>

const qn_command qn_commands[] = {
    { QN_CMD_RUN, "run", "generate text from a prompt", "run [MODEL] [-p] PROMPT [options]",
      "Reads the prompt and continues it until the model ends its text, N tokens are made, or the context is full.\n"
      "The prompt is an operand, the value of -p, a file (-f) or standard input. Of the latter two one newline at the end and "
      "a "
      "byte\n"
      "order mark at the beginning are no part of it. Only generated text goes to standard output; a line with the speed goes "
      "to\n"
      "standard error. Ctrl-C stops.",
      0, 2, qn_run_defaults, qn_cli_run },
    { QN_CMD_CHAT, "chat", "hold a conversation", "chat [MODEL] [options]",
      "Talks with the model in its chat format. Only what is new is evaluated at each turn. On a terminal lines can be "
      "edited,\n"
      "and several pasted lines are one message; otherwise each line of standard input is one. Ctrl-C stops an answer, Ctrl-D\n"
      "leaves. /help lists commands: answer again, edit, think or not, save and load. //TEXT sends a line that begins with a "
      "slash,\n"
      "and a backslash at the end of a line continues it. In a full context the oldest turns are dropped.",
      0, 1, qn_chat_defaults, qn_cli_chat },
    { QN_CMD_SERVE, "serve", "answer requests over HTTP, as OpenAI's API does", "serve [MODEL] [options]",
      "Serves a model at http://HOST:PORT, to many clients at a time: /v1/chat/completions, /v1/completions, /v1/responses,\n"
      "/v1/messages, /v1/models, /health, /metrics, and llama-server's /completion, /tokenize, /detokenize, /apply-template\n"
      "and /props. Without keys only this machine can use it. Several models, of -m given more than once or of --models-dir,\n"
      "are each loaded when a request names them, and freed when others need their memory. SIGTERM and Ctrl-C let it finish\n"
      "what it has, a second one ends it at once; SIGHUP reads keys, certificates and the folder of models again. Prompts and\n"
      "answers are never logged.",
      0, 1, qn_serve_defaults, qn_cli_serve },
    { QN_CMD_BATCH, "batch", "answer the requests of a file, many at a time", "batch [-m MODEL] IN.jsonl OUT.jsonl [options]",
      "Each line of IN is a request in OpenAI's batch format: an object with custom_id, url (/v1/chat/completions or "
      "/v1/completions)\n"
      "and body. OUT gets a line for each, as soon as it is finished: custom_id with response, or with error, whose message "
      "has the\n"
      "number of the line. Bodies are those of quern serve (docs/protocols.md): messages with tools, tool_choice, "
      "response_format and\n"
      "chat_template_kwargs, or prompt, how tokens are sampled, n, stop, logprobs; an answer is never streamed.\n"
      "After Ctrl-C or a crash, --resume answers what is left. The exit status is 0 if a request was answered, or there was "
      "none, and 1\n"
      "if all are errors, or the job could not go on.",
      0, 3, NULL, qn_cli_batch },
    { QN_CMD_BENCH, "bench", "measure speed, beside the memory bandwidth of the same machine", "bench [-m] MODEL [options]",
      "Measures prefill, a prompt of random token ids (ppN), and greedy decoding (tgN), after -d tokens of context. With an\n"
      "option that says how tokens are sampled also decoding by it (tgN sampled), the others as in quern run; with\n"
      "--json-schema also JSON of the schema (tgN schema), greedy or by these options. Decoding is that of a request to a\n"
      "scheduler, as quern serve has it. Each test runs -r times, in turn with those that it is compared with; the table and "
      "the\n"
      "JSON give median, least and greatest rate, the bytes that decoding one token reads at that depth, the read bandwidth "
      "of\n"
      "the machine with as many threads, or of the GPU, measured between the repetitions, and the rate over that of the row\n"
      "without: greedy for sampled, and for the schema the one that samples alike. JSON is one object a test and line.",
      0, 1, qn_bench_defaults, qn_cli_bench },
    { QN_CMD_BENCH_SERVE, "bench-serve", "measure a server of OpenAI's protocol", "bench-serve URL [options]",
      "Sends requests to a server, quern's or another, and prints how long they waited for the first token and between "
      "tokens,\n"
      "the tokens a second of all together, and how many failed in which way. URL is http://HOST:PORT or https://HOST, with "
      "or\n"
      "without /v1. Two requests before the others find how many tokens the server makes of words, so that prompts have the\n"
      "lengths asked for. After Ctrl-C it prints the results so far.",
      1, 1, qn_bench_serve_defaults, qn_cli_bench_serve },
    { QN_CMD_PERPLEXITY, "perplexity", "how well a model predicts a text", "perplexity [-m] MODEL -f TEXT [options]",
      "Splits the text into pieces of -c tokens that do not overlap, evaluates each from an empty context, and scores the "
      "second\n"
      "half of each: tokens c/2 to c-1, counted from 0, each predicted from all those before it in its piece. A rest shorter\n"
      "than a piece is left out. Where the model uses a beginning-of-text token, it replaces the first token of every "
      "piece.\n"
      "Special tokens written in the text are plain text. Prints \"perplexity: X +/- Y (N tokens)\": exp of the mean of -log "
      "p,\n"
      "its standard error, and how many tokens were scored.",
      0, 1, qn_perplexity_defaults, qn_cli_perplexity },
    { QN_CMD_TOKENIZE, "tokenize", "text to tokens", "tokenize [-m] MODEL [--ids] [-f FILE | --chat FILE [--text] | TEXT]",
      "Prints one token a line, its id and the text it stands for; with --ids the ids alone, on one line. The text is the\n"
      "operand, a file, or standard input, and is taken as it is, a last newline included. With --chat it is what the chat\n"
      "template prints for a conversation. A file that has only a vocabulary is enough.",
      0, 2, NULL, qn_cli_tokenize },
    { QN_CMD_LOGITS, "logits", "raw logits for given tokens, into a file", "logits [-m] MODEL --ids 1,2,3 -o OUT.f32 [options]",
      "Writes little-endian f32 logits, [n_ids, n_vocab], row i for what follows ids 0 to i. --batch evaluates the ids N at a\n"
      "time; on the CPU that never changes a bit of the result. The file appears whole or not at all. Logits that are not\n"
      "finite are an error.",
      0, 1, NULL, qn_cli_logits },
    { QN_CMD_INFO, "info", "what a GGUF file holds", "info [-m] FILE [--plan]",
      "Prints a GGUF file's metadata, tensors (type, dimensions, row width first, name) and totals by weight type, which of "
      "its\n"
      "layouts type 42 has, which weights are in a rotated basis, and whether quern has its\n"
      "tokeniser and chat format, tool calls, thinking and levels of effort included.\n"
      "Of a model split over several files, FILE is any of them.",
      0, 1, NULL, qn_cli_info },
    { QN_CMD_QUANTIZE, "quantize", "rewrite a GGUF file in another weight type", "quantize IN OUT TYPE [options]",
      "Rewrites a GGUF file with its matrices in TYPE: f16 bf16 q8_0 q4_0 q4_1 q1_0 q2_0 pq2_0 ptq1_0 tq1_0 tq2_0. Tensors of "
      "one\n"
      "dimension stay f32, and a matrix whose rows do not fit the type's block keeps a wider type: a line says how many did, "
      "-v\n"
      "names them. A type of 1 or 2 bits is for weights that it holds, as ptq1_0 and pq2_0 ternary ones: for others it is\n"
      "refused, but with --force. IN and OUT may be the same file; any other OUT that exists must be a GGUF file or empty. It\n"
      "appears whole or not at all. Of a model split over several files, IN is any of them, and OUT is one file.",
      3, 3, NULL, qn_cli_quantize },
    { QN_CMD_CONVERT, "convert", "make a GGUF file from a checkpoint of Hugging Face transformers",
      "convert DIR OUT [TYPE] [options]",
      "DIR holds config.json, tokenizer.json and model.safetensors, or its parts with model.safetensors.index.json, of one of\n"
      "LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration (its text "
      "model).\n"
      "TYPE is f32, f16, bf16, q8_0 or another of quern quantize; without it each matrix keeps the type that it has.\n"
      "Matrices that are binary or ternary in groups of 128 weights are recognised and stored without loss in q1_0, ptq1_0 or\n"
      "pq2_0, unless TYPE has more than 2 bits. Other weights are refused for types of 1 or 2 bits, but with --force. A tensor "
      "that\n"
      "is missing or unknown is an error. OUT appears whole or not at all; if it exists, it must be a GGUF file or empty.",
      2, 3, NULL, qn_cli_convert },
    { QN_CMD_KERNELS, "kernels", "the GPU's kernels, and where their code comes from", "kernels [options]",
      "Loads every kernel of the GPU and says where its code came from: built in, the cache, nvcc or NVRTC.\n"
      "Without a GPU, says which ones this program carries.",
      0, 0, NULL, qn_cli_kernels },
    { QN_CMD_PULL, "pull", "download a model of the Hugging Face hub", "pull OWNER/REPO[:FILE | :TYPE] [options]",
      "Downloads a GGUF file, all parts of a split one, into the hub's cache, which huggingface_hub shares, and prints its "
      "path.\n"
      "FILE is a path in the repository, TYPE a weight type such as Q1_0. Without them: the largest 1-bit or ternary file "
      "that\n"
      "fits in memory, else the largest quantised one; a note says which and why. An interrupted download is continued. Size "
      "and\n"
      "SHA-256 are verified. The same names may follow -m; what is in the cache is then used without asking the hub.",
      1, 1, NULL, qn_cli_pull },
    { QN_CMD_LIST, "list", "the models in the hub's cache", "list",
      "Prints the GGUF files in the hub's cache: size, weight type, when it was last used, and the name by which -m takes it.\n"
      "Downloads that are not complete are listed by repository.",
      0, 0, NULL, qn_cli_list },
    { QN_CMD_RM, "rm", "remove a model from the hub's cache", "rm OWNER/REPO[:FILE | :TYPE]",
      "Removes a model from the hub's cache; without FILE and TYPE all GGUF files of the repository and incomplete downloads.\n"
      "Other files of the repository stay.",
      1, 1, NULL, qn_cli_rm },
};
const size_t qn_n_commands = sizeof qn_commands / sizeof *qn_commands;

const qn_command *qn_command_find(const char *name)
{
    for (size_t i = 0; i < qn_n_commands; i++)
        if (strcmp(qn_commands[i].name, name) == 0)
            return &qn_commands[i];
    return NULL;
}
