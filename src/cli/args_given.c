/* Functions with which commands read the parsed command line. */
#include "cli/args.h"

#include "cli/cli.h"
#include "hub/name.h"

#include <stddef.h>
#include <string.h>

/* ---- Options given ---- */

bool qn_args_has(const qn_args *args, size_t offset)
{
    for (size_t i = 0; i < qn_n_options; i++)
        if (args->is_given[i] && qn_options[i].offset == offset)
            return true;
    return false;
}

/* Whether the field at an offset says how tokens are sampled; the seed does not. */
static bool is_of_sampling(size_t offset)
{
    const size_t begin = offsetof(qn_args, sampling), end = begin + sizeof(qn_sampling);
    return offset >= begin && offset < end && offset != offsetof(qn_args, sampling.seed);
}

bool qn_args_has_sampling(const qn_args *args)
{
    for (size_t i = 0; i < qn_n_options; i++)
        if (args->is_given[i] && is_of_sampling(qn_options[i].offset))
            return true;
    return args->dry_breakers.count > 0;
}

void qn_args_put_sampling(const qn_args *args, qn_sampling *sampling)
{
    for (size_t i = 0; i < qn_n_options; i++) {
        const qn_option *option = &qn_options[i];
        if (!args->is_given[i] || !is_of_sampling(option->offset))
            continue;
        void *to = (char *)sampling + (option->offset - offsetof(qn_args, sampling));
        const void *from = (const char *)args + option->offset;
        if (option->kind == QN_OPTION_NUMBER)
            *(float *)to = *(const float *)from;
        else
            *(int *)to = *(const int *)from;
    }
}

/* ---- Operands ---- */

/* Whether an operand looks like a model. "and/or" is a prompt. */
static bool is_model(const char *operand)
{
    const size_t length = strlen(operand);
    return qn_begins_as_gguf(operand) ||
           (length > 5 && strcmp(operand + length - 5, ".gguf") == 0 && !strpbrk(operand, " \t\n")) ||
           (qn_hub_name_is(operand) && (strchr(operand, ':') || strcasestr(operand, "gguf")));
}

void qn_args_take_model(qn_args *args)
{
    if (args->model || !args->n_operands || !is_model(args->operands[0]))
        return;
    args->model = args->operands[0];
    args->n_operands--;
    for (size_t i = 0; i < args->n_operands; i++)
        args->operands[i] = args->operands[i + 1];
}

qn_args_result qn_args_no_more(const char *command, const qn_args *args, size_t n)
{
    if (args->n_operands <= n)
        return QN_ARGS_OK;
    qn_cli_error("%s: unexpected argument '%s' (see quern %s --help)", command, args->operands[n], command);
    return QN_ARGS_BAD;
}

void qn_args_hide(const char *text)
{
    explicit_bzero((char *)text, strlen(text));
}
