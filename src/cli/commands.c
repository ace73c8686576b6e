/* The table of commands. */
#include "cli/args.h"

#include "cli/cli.h"

#include <string.h>

const qn_command qn_commands[] = {
    { QN_CMD_RUN, "run", "generate text from a prompt", "run [MODEL] [-p] PROMPT [options]",
      "Reads the prompt and continues it until the model ends the text, N tokens are generated, or the context is\n"
      "full. The prompt is an operand, the value of -p, a file (-f) or standard input; from a file or standard\n"
      "input, one newline at the end and a byte order mark at the beginning are not part of it. Only generated text\n"
      "goes to standard output; a line with the speed goes to standard error. Ctrl-C stops.",
      0, 2, qn_run_defaults, qn_cli_run },
    { QN_CMD_CHAT, "chat", "hold a conversation", "chat [MODEL] [MESSAGE] [options]",
      "Talks with the model in its chat format. At each turn only new tokens are evaluated. On a terminal lines can\n"
      "be edited, and several pasted lines are one message; otherwise each line of standard input is one. What is\n"
      "typed during an answer is kept for the next message. Ctrl-C stops an answer, Ctrl-Z the program, Ctrl-D\n"
      "leaves. /help lists commands: answer again, edit, thinking on or off, save and load with the cache.\n"
      "//TEXT sends a line that begins with a slash, and a backslash at the end of a line continues it. In a full\n"
      "context the oldest turns are dropped. MESSAGE is the first message.",
      0, 2, qn_chat_defaults, qn_cli_chat },
    { QN_CMD_SERVE, "serve", "answer requests over HTTP, as OpenAI's API does", "serve [MODEL] [options]",
      "Serves a model at http://HOST:PORT, to many clients at a time: /v1/chat/completions, /v1/completions,\n"
      "/v1/responses, /v1/embeddings, /v1/messages, /v1/models, /health, /metrics, Ollama's /api/chat and others, and\n"
      "llama-server's /completion, /infill, /tokenize, /detokenize, /apply-template, /props and /slots. Without keys\n"
      "only this machine can use it. Several models, from repeated -m or --models-dir, are each loaded when a request\n"
      "names them, and freed when others need their memory. SIGTERM and Ctrl-C let requests finish, a second one ends\n"
      "the server at once; SIGHUP reads keys, certificates and the folder of models again. Prompts and answers are\n"
      "never logged.",
      0, 1, qn_serve_defaults, qn_cli_serve },
    { QN_CMD_BATCH, "batch", "answer the requests of a file, many at a time",
      "batch [-m MODEL] IN.jsonl OUT.jsonl [options]",
      "Each line of IN is a request in OpenAI's batch format: an object with custom_id, url (/v1/chat/completions\n"
      "or /v1/completions) and body. OUT gets a line for each request as soon as it is finished: custom_id with\n"
      "response, or with error, whose message has the number of the line. IN and OUT may be -, which is standard\n"
      "input and standard output. Bodies are those of quern serve (docs/protocols.md): messages with tools,\n"
      "tool_choice, response_format and chat_template_kwargs, or prompt; sampling, n, stop, logprobs. Answers are\n"
      "never streamed. After Ctrl-C or a crash, --resume answers the remaining requests. The exit status is 0 if a\n"
      "request was answered, or there was none, and 1 if all are errors, or the job could not continue.",
      0, 3, qn_batch_defaults, qn_cli_batch },
    { QN_CMD_BENCH, "bench", "measure speed and compare it with the memory bandwidth", "bench [-m] MODEL [options]",
      "Measures prefill, a prompt of random token ids (ppN), and greedy decoding (tgN), after -d tokens of context.\n"
      "With a sampling option it also measures sampled decoding (tgN sampled), the other options as in quern run;\n"
      "with --json-schema also decoding of JSON under the schema (tgN schema), greedy or with these options.\n"
      "Decoding is a request to a scheduler, as in quern serve. Each test runs -r times, in turn with the test that\n"
      "it is compared with. The table and the JSON give the median, least and greatest rate, the bytes that\n"
      "decoding one token reads at that depth, the read bandwidth of the machine with the same number of threads,\n"
      "or of the GPU, measured between the repetitions, and the rate relative to the row without: greedy for\n"
      "sampled, and for the schema the row with the same sampling. JSON is one object per test and line.",
      0, 1, qn_bench_defaults, qn_cli_bench },
    { QN_CMD_BENCH_SERVE, "bench-serve", "measure a server of OpenAI's protocol", "bench-serve URL [options]",
      "Sends requests to a server, quern's or another, and prints the times to the first token and between tokens,\n"
      "the tokens a second of all requests together, and how many failed in which way. URL is http://HOST:PORT or\n"
      "https://HOST, with or without /v1. Two requests before the others find out how many tokens words are for the\n"
      "server, so that prompts have the requested lengths. After Ctrl-C it prints the results so far.",
      1, 1, qn_bench_serve_defaults, qn_cli_bench_serve },
    { QN_CMD_PERPLEXITY, "perplexity", "measure how well a model predicts a text",
      "perplexity [-m] MODEL {-f TEXT | --kl-divergence FILE} [options]",
      "Splits the text into pieces of -c tokens that do not overlap, evaluates each from an empty context, and\n"
      "scores the second half of each: tokens c/2 to c-1, counted from 0, each predicted from all tokens before it\n"
      "in its piece. A rest shorter than a piece is ignored. If the model uses a beginning-of-text token, it\n"
      "replaces the first token of every piece. Special tokens written in the text are plain text. Prints\n"
      "\"perplexity: X +/- Y (N tokens)\": exp of the mean of -log p, its standard error, and the number of tokens\n"
      "scored. With --kl-divergence it compares the model with a base, token by token; scored are then tokens c/2+1\n"
      "to c-1 of each piece, as llama-perplexity scores them.",
      0, 1, qn_perplexity_defaults, qn_cli_perplexity },
    { QN_CMD_TOKENIZE, "tokenize", "convert text to tokens",
      "tokenize [-m] MODEL [--ids] [-f FILE | --chat FILE [--text] | TEXT]",
      "Prints one token per line, its id and its text; with --ids only the ids, on one line. The text is the\n"
      "operand, a file, or standard input, and is used as it is, including a last newline. With --chat it is the\n"
      "chat template's output for a conversation. A file that has only a vocabulary is enough.",
      0, 2, NULL, qn_cli_tokenize },
    { QN_CMD_LOGITS, "logits", "write raw logits for given tokens to a file",
      "logits [-m] MODEL --ids 1,2,3 -o OUT.f32 [options]",
      "Writes little-endian f32 logits, [n_ids, n_vocab]; row i predicts the token after ids 0 to i. --batch\n"
      "evaluates the ids N at a time; on the CPU that never changes a bit of the result. The file appears whole or\n"
      "not at all. Logits that are not finite are an error.",
      0, 1, NULL, qn_cli_logits },
    { QN_CMD_INFO, "info", "show the contents of a GGUF file", "info [-m] FILE [--plan | --device NAME]",
      "Prints a GGUF file's metadata, tensors (type, dimensions, row width first, name) and totals by weight type,\n"
      "which of its layouts type 42 has, which weights are in a rotated basis, and whether quern has its tokeniser\n"
      "and chat format, with tool calls, thinking and levels of effort. Also the memory that its weights, the state\n"
      "of a sequence and the KV cache in each format need, and whether they fit in the memory that is available, or\n"
      "in the GPU's. Contexts may take half of what the weights leave unless --memory is given. For a model split\n"
      "over several files, FILE is any of them.",
      0, 1, NULL, qn_cli_info },
    { QN_CMD_QUANTIZE, "quantize", "rewrite a GGUF file in another weight type", "quantize IN OUT TYPE [options]",
      "Rewrites a GGUF file with its matrices in TYPE: f16 bf16 q8_0 q4_0 q4_1 q1_0 q2_0 pq2_0 ptq1_0 tq1_0 tq2_0.\n"
      "Tensors of one dimension stay f32, and a matrix whose rows do not fit the type's block keeps a wider type: a\n"
      "line says how many did, -v names them. A type of 1 or 2 bits is for weights that it holds without loss, as\n"
      "ptq1_0 and pq2_0 hold ternary ones; for other weights it needs --force, but gates of recurrent layers keep 16\n"
      "bits. IN and OUT may be the same file; any other existing OUT must be a GGUF file or empty. OUT appears whole\n"
      "or not at all. For a model split over several files, IN is any of them, and OUT is one file.",
      3, 3, NULL, qn_cli_quantize },
    { QN_CMD_CONVERT, "convert", "make a GGUF file from a checkpoint of Hugging Face transformers",
      "convert DIR OUT [TYPE] [options]",
      "DIR holds config.json, tokenizer.json and model.safetensors, or its parts with model.safetensors.index.json,\n"
      "of one of LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3_5ForCausalLM,\n"
      "Qwen3_5ForConditionalGeneration (its text model). TYPE is f32, f16, bf16, q8_0 or another of quern quantize;\n"
      "without it each matrix keeps its type. Matrices that are binary or ternary in groups of 128 weights are\n"
      "recognised and stored without loss in q1_0, ptq1_0 or pq2_0, unless TYPE has more than 2 bits. Matrices in\n"
      "FP8, and those packed by MLX, GPTQ or AWQ, are unpacked; without TYPE they become bf16 or f16. For other\n"
      "weights types of 1 or 2 bits need --force. A missing or unknown tensor is an error. OUT appears whole or not\n"
      "at all; if it exists, it must be a GGUF file or empty.",
      2, 3, NULL, qn_cli_convert },
    { QN_CMD_GRAFT, "graft", "join the MTP block of another file to a model", "graft MODEL HEAD OUT [options]",
      "Writes MODEL with the block of multi-token prediction of HEAD, for models that are published without it: ternary\n"
      "files of Qwen3.5 and Qwen3.8. HEAD is a GGUF file of the base model or of the block alone, the folder of a\n"
      "checkpoint with config.json, of whose weights only the file with the tensors mtp.* has to be there, or such a\n"
      "file with config.json next to it. Everything else of MODEL stays as it is. Refused is a block whose model has\n"
      "another shape, rope or vocabulary, with the values that differ. MODEL may be a rotated model. MODEL and HEAD\n"
      "may be names of the hub. OUT is another file; it appears whole or not at all; if it exists, it must be a GGUF\n"
      "file or empty.",
      3, 3, NULL, qn_cli_graft },
    { QN_CMD_KERNELS, "kernels", "list the GPU's kernels and where their code comes from", "kernels [options]",
      "Loads every kernel of the GPU and says where its code came from: built in, the cache, nvcc or NVRTC. Without\n"
      "a GPU, lists the kernels that this program carries.",
      0, 0, NULL, qn_cli_kernels },
    { QN_CMD_DEVICES, "devices", "list the devices that --device can name", "devices",
      "Prints a line for each device of this machine: the CPU and its instruction set, CUDA and Vulkan devices with\n"
      "their size and driver. Where there is none of a kind, the line says why.",
      0, 0, NULL, qn_cli_devices },
    { QN_CMD_PULL, "pull", "download a model of the Hugging Face hub",
      "pull OWNER/REPO[@REVISION][:FILE | :TYPE] [options]",
      "Downloads a GGUF file, all parts of a split one, into the hub's cache, which huggingface_hub shares, and\n"
      "prints its path. REVISION is a branch, tag or commit (default main), FILE a path in the repository, TYPE a\n"
      "weight type such as Q1_0. Without FILE and TYPE it takes the largest 1-bit or ternary file that fits in\n"
      "memory, else the largest quantised one; a note says which and why. Drafters are not taken for the model, but\n"
      "a note says how to pull the one that is next to it. An interrupted download is continued.\n"
      "Size and SHA-256 are verified. The same names may follow -m; a model in the cache is then used without\n"
      "asking the hub. Addresses as a browser shows them are names, too: hf.co/OWNER/REPO.",
      1, 1, NULL, qn_cli_pull },
    { QN_CMD_LIST, "list", "list the models in the hub's cache", "list",
      "Prints the GGUF files in the hub's cache: size, weight type, time of last use, and the name by which -m\n"
      "takes it. Drafters are marked. Incomplete downloads are listed by repository.",
      0, 0, NULL, qn_cli_list },
    { QN_CMD_RM, "rm", "remove a model from the hub's cache", "rm OWNER/REPO[@REVISION][:FILE | :TYPE]",
      "Removes a model from the hub's cache; without FILE and TYPE all GGUF files of the repository and incomplete\n"
      "downloads; with REVISION only files of that revision. Other files of the repository stay.",
      1, 1, NULL, qn_cli_rm },
};
const size_t qn_n_commands = sizeof qn_commands / sizeof *qn_commands;

const qn_command *qn_command_find(const char *name)
{
    const qn_foreign_command *foreign = qn_foreign_command_find(name);
    if (foreign && foreign->same)
        name = foreign->same;
    for (size_t i = 0; i < qn_n_commands; i++)
        if (strcmp(qn_commands[i].name, name) == 0)
            return &qn_commands[i];
    return NULL;
}
