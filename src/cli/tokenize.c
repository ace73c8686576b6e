/* quern tokenize: text to tokens, from a model or from a file that has a vocabulary only. */
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

static int print_tokens(const qn_args *args, const qn_model *model, const qn_token *tokens, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (args->ids_only) {
            printf("%s%d", i ? " " : "", (int)tokens[i]);
            continue;
        }
        const char *piece;
        size_t length;
        if (qn_token_piece(model, tokens[i], &piece, &length))
            return qn_cli_fail();
        printf("%7d '", (int)tokens[i]);
        qn_print_escaped(stdout, piece, length);
        fputs("'\n", stdout);
    }
    if (args->ids_only)
        putchar('\n');
    return QN_EXIT_DONE;
}

int qn_cli_tokenize(qn_args *args)
{
    qn_args_take_model(args);
    if (qn_args_no_more("tokenize", args, 1) != QN_ARGS_OK)
        return QN_EXIT_USAGE;
    const char *text = args->n_operands ? args->operands[0] : NULL;
    if (args->file && text) {
        qn_cli_error("tokenize: give a text or -f FILE, not both");
        return QN_EXIT_USAGE;
    }
    qn_model *model;
    int status = qn_load_model(args, true, false, &model);
    if (status)
        return status;
    char *read = NULL;
    size_t length = text ? strlen(text) : 0;
    if (!text) {
        const bool from_stdin = !args->file || strcmp(args->file, "-") == 0;
        if (!qn_read_all(from_stdin ? NULL : args->file, UINT64_MAX, &read, &length))
            status = QN_EXIT_FAILED;
        text = read;
    }
    qn_token *tokens = NULL;
    size_t count = 0;
    if (status == QN_EXIT_DONE && qn_tokenize(model, text, length, !args->no_special, args->bos, &tokens, &count))
        status = qn_cli_fail();
    if (status == QN_EXIT_DONE)
        status = print_tokens(args, model, tokens, count);
    qn_free_tokens(tokens);
    free(read);
    qn_model_free(model);
    return status;
}
