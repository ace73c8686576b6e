/* quern tokenize: prints the tokens of a text, by a model or a file with only a vocabulary. */
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

/* Returns the time for templates that print the date: SOURCE_DATE_EPOCH, or -1 for now. */
static int64_t template_time(void)
{
    const char *text = getenv("SOURCE_DATE_EPOCH");
    char *end;
    if (!text || !*text)
        return -1;
    const long long seconds = strtoll(text, &end, 10);
    return *end || seconds < 0 ? -1 : seconds;
}

static int print_conversation(const qn_args *args, const qn_model *model, const char *json, size_t length)
{
    qn_token *tokens;
    char *text;
    size_t n;
    int status = QN_EXIT_DONE;
    if (args->text_only) {
        if (qn_conversation_text(model, json, length, template_time(), &text, &n))
            return qn_cli_fail();
        fwrite(text, 1, n, stdout);
        qn_free_text(text);
        return QN_EXIT_DONE;
    }
    if (qn_conversation_tokens(model, json, length, template_time(), &tokens, &n))
        return qn_cli_fail();
    status = print_tokens(args, model, tokens, n);
    qn_free_tokens(tokens);
    return status;
}

static int print_text(const qn_args *args, const qn_model *model, const char *text, size_t length)
{
    qn_token *tokens;
    size_t n;
    if (qn_tokenize(model, text, length, !args->no_special, args->bos, &tokens, &n))
        return qn_cli_fail();
    const int status = print_tokens(args, model, tokens, n);
    qn_free_tokens(tokens);
    return status;
}

static int check_inputs(const qn_args *args)
{
    const int given = (args->n_operands > 0) + (args->file != NULL) + (args->conversation != NULL);
    if (given > 1)
        qn_cli_error("tokenize: give one of a text, -f FILE and --chat FILE");
    else if (args->text_only && !args->conversation)
        qn_cli_error("tokenize: --text needs --chat FILE");
    else
        return QN_EXIT_DONE;
    return QN_EXIT_USAGE;
}

int qn_cli_tokenize(qn_args *args)
{
    qn_args_take_model(args, 0);
    if (qn_args_no_more("tokenize", args, 1) != QN_ARGS_OK || check_inputs(args) != QN_EXIT_DONE)
        return QN_EXIT_USAGE;
    qn_model *model;
    int status = qn_load_model(args, true, false, &model);
    if (status)
        return status;
    const char *text = args->n_operands ? args->operands[0] : NULL,
               *path = args->conversation ? args->conversation : args->file;
    char *read = NULL;
    size_t length = text ? strlen(text) : 0;
    if (!text) {
        const bool from_stdin = !path || strcmp(path, "-") == 0;
        if (!qn_read_all(from_stdin ? NULL : path, UINT64_MAX, &read, &length))
            status = QN_EXIT_FAILED;
        text = read;
    }
    if (status == QN_EXIT_DONE)
        status =
            args->conversation ? print_conversation(args, model, text, length) : print_text(args, model, text, length);
    free(read);
    qn_model_free(model);
    return status;
}
