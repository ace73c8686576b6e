/* quern tokenize: text to tokens, from a model or from a file that has a vocabulary only. */
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

struct tokenize {
    qn_model_args model;
    const char *file, *text;
    bool ids, begin, no_special;
};

static const char purpose[] = "Prints one token a line, its id and the text it stands for; with --ids the ids alone, on one "
                              "line. The text is the argument,\n"
                              "a file, or standard input, and is taken as it is, a last newline included.";

static qn_args_result parse(struct tokenize *t, int argc, char **argv)
{
    const qn_option options[] = {
        QN_MODEL_OPTION(t->model),
        QN_OPT_FLAG("--ids", NULL, &t->ids, "print ids only"),
        QN_OPT_TEXT("-f", "--file", &t->file, "FILE", "read the text from a file; - is standard input"),
        QN_OPT_FLAG("--bos", NULL, &t->begin, "put the beginning-of-text token first, where the model asks for one"),
        QN_OPT_FLAG("--no-special", NULL, &t->no_special, "special tokens written in the text are plain text"),
    };
    const qn_command_line line = {
        .usage = "tokenize -m MODEL [--ids] [-f FILE | TEXT]",
        .purpose = purpose,
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .operands = &t->text,
        .max_operands = 1,
    };
    const qn_args_result result = qn_args_parse(&line, argc, argv);
    if (result == QN_ARGS_OK && t->file && t->text) {
        qn_cli_error("tokenize: give a text or -f FILE, not both");
        return QN_ARGS_BAD;
    }
    return result;
}

static int print_tokens(const struct tokenize *t, const qn_model *model, const qn_token *tokens, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (t->ids) {
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
    if (t->ids)
        putchar('\n');
    return QN_EXIT_DONE;
}

int qn_cli_tokenize(int argc, char **argv)
{
    struct tokenize t = { 0 };
    const qn_args_result parsed = parse(&t, argc, argv);
    if (parsed != QN_ARGS_OK)
        return qn_args_exit(parsed);
    qn_model *model;
    int status = qn_load_model(&t.model, true, false, &model);
    if (status)
        return status;
    char *read = NULL;
    const char *text = t.text;
    size_t length = text ? strlen(text) : 0;
    if (!text) {
        const bool from_stdin = !t.file || strcmp(t.file, "-") == 0;
        if (!qn_read_all(from_stdin ? NULL : t.file, UINT64_MAX, &read, &length))
            status = QN_EXIT_FAILED;
        text = read;
    }
    qn_token *tokens = NULL;
    size_t count = 0;
    if (status == QN_EXIT_DONE && qn_tokenize(model, text, length, !t.no_special, t.begin, &tokens, &count))
        status = qn_cli_fail();
    if (status == QN_EXIT_DONE)
        status = print_tokens(&t, model, tokens, count);
    qn_free_tokens(tokens);
    free(read);
    qn_model_free(model);
    return status;
}
