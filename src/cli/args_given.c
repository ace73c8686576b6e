/* Functions with which commands read the parsed command line. */
#include "cli/args.h"

#include "base/strings.h"
#include "cli/cli.h"
#include "hub/name.h"

#include <ctype.h>
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
           qn_hub_is_address(operand) ||
           (qn_hub_name_is(operand) && (strchr(operand, ':') || qn_strcasestr(operand, "gguf")));
}

void qn_args_take_model(qn_args *args, size_t n_others)
{
    if (args->model || !args->n_operands || (args->n_operands <= n_others && !is_model(args->operands[0])))
        return;
    args->model = args->operands[0];
    args->n_operands--;
    for (size_t i = 0; i < args->n_operands; i++)
        args->operands[i] = args->operands[i + 1];
}

/* Whether a prompt is a model's name as ollama writes it: "qwen3:8b", "llama3.2". */
static bool is_ollama_name(const char *text)
{
    static const char *const families[] = { "bonsai",  "codellama", "deepseek", "falcon",    "gemma",
                                            "gpt-oss", "granite",   "llama",    "mistral",   "mixtral",
                                            "phi",     "qwen",      "smollm",   "tinyllama", NULL };
    const size_t name = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789._-");
    const char *tag = text[name] == ':' ? text + name + 1 : NULL;
    if (!isalpha((unsigned char)*text) || strpbrk(text, "/ \t\n") || (text[name] && !tag))
        return false;
    if (tag)
        return isalnum((unsigned char)*tag) && !strchr(tag, ':');
    for (size_t i = 0; families[i]; i++) {
        const size_t length = strlen(families[i]);
        if (strncmp(text, families[i], length) == 0 && !isalpha((unsigned char)text[length]))
            return true;
    }
    return false;
}

qn_args_result qn_args_check_prompt(const char *command, const qn_args *args)
{
    const char *text = args->operands[0];
    if (args->n_operands != 1 || (args->model && !qn_begins_as_gguf(text)))
        return QN_ARGS_OK;
    if (args->model)
        qn_cli_error("%s: unexpected argument '%s': there is a model before it; a prompt follows -p", command, text);
    else if (qn_hub_name_is(text))
        qn_cli_error("%s: '%s' may be a model of the hub or a prompt: use -m %s, or -p %s", command, text, text, text);
    else if (is_ollama_name(text))
        qn_cli_error("%s: '%s' is no model that quern knows: use -m with a GGUF file or with OWNER/REPO, as in "
                     "prism-ml/Bonsai-8B-gguf (quern list shows the models that are here); a prompt follows -p",
                     command, text);
    else
        return QN_ARGS_OK;
    return QN_ARGS_BAD;
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
    qn_wipe((char *)text, strlen(text));
}
