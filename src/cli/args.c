/* The option parser and the help text. What the options mean is the subcommands' business. */
#include "cli/args.h"

#include "cli/cli.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Compares a table's name with the argument's first n bytes. */
static bool names(const char *name, const char *argument, size_t n)
{
    return name && strlen(name) == n && memcmp(name, argument, n) == 0;
}

static const qn_option *find(const qn_command_line *line, const char *argument, size_t n)
{
    for (size_t i = 0; i < line->n_options; i++)
        if (names(line->options[i].name, argument, n) || names(line->options[i].alias, argument, n))
            return &line->options[i];
    return NULL;
}

/* The whole text must be the number: strtoll alone would take " 3", "3x" and "". */
static bool plain_number_start(const char *text)
{
    return (*text >= '0' && *text <= '9') || *text == '-' || *text == '+' || *text == '.';
}

static bool set_int(const qn_option *option, const char *name, const char *value)
{
    char *end;
    errno = 0;
    const long long number = strtoll(value, &end, 10);
    if (!plain_number_start(value) || end == value || *end) {
        qn_cli_error("%s: '%s' is not a whole number", name, value);
        return false;
    }
    if (errno == ERANGE || (double)number < option->min || (double)number > option->max) {
        qn_cli_error("%s: %s is out of range: %.0f to %.0f", name, value, option->min, option->max);
        return false;
    }
    *(int64_t *)option->out = number;
    return true;
}

static bool set_u64(const qn_option *option, const char *name, const char *value)
{
    char *end;
    errno = 0;
    const unsigned long long number = strtoull(value, &end, 10);
    if (*value < '0' || *value > '9' || *end) { /* strtoull would turn -1 into 2^64-1 */
        qn_cli_error("%s: '%s' is not a whole number from 0 to 2^64-1", name, value);
        return false;
    }
    if (errno == ERANGE) {
        qn_cli_error("%s: %s is out of range: 0 to 2^64-1", name, value);
        return false;
    }
    *(uint64_t *)option->out = number;
    return true;
}

static bool set_number(const qn_option *option, const char *name, const char *value)
{
    char *end;
    const double number = strtod(value, &end);
    if (!plain_number_start(value) || end == value || *end) {
        qn_cli_error("%s: '%s' is not a number", name, value);
        return false;
    }
    if (!isfinite(number) || number < option->min || number > option->max) {
        qn_cli_error("%s: %s is out of range: %g to %g", name, value, option->min, option->max);
        return false;
    }
    *(double *)option->out = number;
    return true;
}

static bool set_choice(const qn_option *option, const char *name, const char *value)
{
    char known[256] = "";
    for (size_t i = 0; option->choices[i]; i++) {
        if (strcmp(option->choices[i], value) == 0) {
            *(const char **)option->out = option->choices[i];
            return true;
        }
        const size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", option->choices[i]);
    }
    qn_cli_error("%s: '%s' is not one of %s", name, value, known);
    return false;
}

static bool set(const qn_option *option, const char *name, const char *value)
{
    switch (option->kind) {
    case QN_OPTION_FLAG: *(bool *)option->out = true; return true;
    case QN_OPTION_TEXT: *(const char **)option->out = value; return true;
    case QN_OPTION_TEXTS: {
        qn_texts *texts = option->out;
        if (texts->count == QN_TEXTS_MAX) {
            qn_cli_error("%s: given more than %d times", name, QN_TEXTS_MAX);
            return false;
        }
        texts->at[texts->count++] = value;
        return true;
    }
    case QN_OPTION_INT: return set_int(option, name, value);
    case QN_OPTION_U64: return set_u64(option, name, value);
    case QN_OPTION_NUMBER: return set_number(option, name, value);
    case QN_OPTION_CHOICE: return set_choice(option, name, value);
    }
    return false;
}

static void print_help(const qn_command_line *line)
{
    printf("usage: quern %s\n\n%s\n\n", line->usage, line->purpose);
    for (size_t i = 0; i < line->n_options; i++) {
        const qn_option *option = &line->options[i];
        char left[64];
        snprintf(left, sizeof left, "%s%s%s%s%s", option->name, option->alias ? ", " : "", option->alias ? option->alias : "",
                 option->value_name ? " " : "", option->value_name ? option->value_name : "");
        printf("  %-24s %s\n", left, option->help);
    }
    printf("  %-24s %s\n", "-h, --help", "show this text");
}

qn_args_result qn_args_parse(const qn_command_line *line, int argc, char **argv)
{
    size_t n_operands = 0;
    bool options_end = false;
    for (int i = 1; i < argc; i++) {
        char *argument = argv[i];
        if (options_end || argument[0] != '-' || !argument[1]) {
            if (n_operands == line->max_operands) {
                qn_cli_error("%s: unexpected argument '%s' (see quern %s --help)", argv[0], argument, argv[0]);
                return QN_ARGS_BAD;
            }
            line->operands[n_operands++] = argument;
            continue;
        }
        if (strcmp(argument, "--") == 0) {
            options_end = true;
            continue;
        }
        if (strcmp(argument, "-h") == 0 || strcmp(argument, "--help") == 0) {
            print_help(line);
            return QN_ARGS_HELP;
        }
        const char *equals = argument[1] == '-' ? strchr(argument, '=') : NULL;
        const size_t length = equals ? (size_t)(equals - argument) : strlen(argument);
        const qn_option *option = find(line, argument, length);
        if (!option) {
            qn_cli_error("%s: unknown option '%.*s' (see quern %s --help)", argv[0], (int)(length < 100 ? length : 100),
                         argument, argv[0]);
            return QN_ARGS_BAD;
        }
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)length, argument);
        const char *value = equals ? equals + 1 : NULL;
        if (option->kind == QN_OPTION_FLAG && value) {
            qn_cli_error("%s: takes no value, '%s' was given", name, value);
            return QN_ARGS_BAD;
        }
        if (option->kind != QN_OPTION_FLAG && !value) {
            if (i + 1 == argc) {
                qn_cli_error("%s: a value is missing", name);
                return QN_ARGS_BAD;
            }
            value = argv[++i];
        }
        if (!set(option, name, value))
            return QN_ARGS_BAD;
    }
    if (n_operands < line->min_operands) {
        qn_cli_error("%s: too few arguments: usage: quern %s", argv[0], line->usage);
        return QN_ARGS_BAD;
    }
    return QN_ARGS_OK;
}

int qn_args_exit(qn_args_result result)
{
    return result == QN_ARGS_HELP ? QN_EXIT_DONE : QN_EXIT_USAGE;
}
