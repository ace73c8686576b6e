/* The program: finds the subcommand and hands over to it. */
#include "cli/cli.h"
#include "cli/signals.h"

#include <locale.h>
#include <string.h>

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *purpose;
} commands[] = {
    { "run", qn_cli_run, "generate text from a prompt" },
    { "chat", qn_cli_chat, "hold a conversation" },
    { "bench", qn_cli_bench, "measure speed, beside the memory bandwidth of the same machine" },
    { "perplexity", qn_cli_perplexity, "how well a model predicts a text" },
    { "tokenize", qn_cli_tokenize, "text to tokens" },
    { "logits", qn_cli_logits, "raw logits for given tokens, into a file" },
    { "info", qn_cli_info, "what a GGUF file holds" },
    { "quantize", qn_cli_quantize, "rewrite a GGUF file in another weight type" },
    { "kernels", qn_cli_kernels, "the GPU's kernels, and where their code comes from" },
};

enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void usage(FILE *stream)
{
    fprintf(stream, "usage: quern COMMAND [options]\n\nRuns 1-bit and ternary language models.\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(stream, "  %-12s %s\n", commands[i].name, commands[i].purpose);
    fprintf(stream, "\nquern COMMAND --help lists a command's options; quern --version prints the version.\n");
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return QN_EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--version") == 0) {
        printf("quern %s\n", qn_version());
        return QN_EXIT_DONE;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        usage(stdout);
        return QN_EXIT_DONE;
    }
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    qn_cli_error("%s '%s' (see quern --help)", *name == '-' ? "unknown option" : "unknown command", name);
    return QN_EXIT_USAGE;
}

int main(int argc, char **argv)
{
    setlocale(LC_CTYPE, ""); /* for line editing; numbers keep their point */
    qn_signals_install();
    const int status = qn_out_finish(dispatch(argc, argv));
    qn_signals_exit();
    return status;
}
