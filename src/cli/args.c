/* The option parser. Commands interpret the options. */
#include "cli/args.h"

#include "base/append.h"
#include "base/random.h"
#include "cli/cli.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Looking up ---- */

static bool is_name(const char *name, const char *argument, size_t n)
{
    return name && strlen(name) == n && memcmp(name, argument, n) == 0;
}

static const qn_option *find(unsigned commands, const char *argument, size_t n)
{
    for (size_t i = 0; i < qn_n_options; i++) {
        const qn_option *option = &qn_options[i];
        if ((option->commands & commands) &&
            (is_name(option->name, argument, n) || is_name(option->alias, argument, n) ||
             is_name(option->accepted, argument, n)))
            return option;
    }
    return NULL;
}

static const qn_foreign_option *find_foreign(const char *argument, size_t n)
{
    for (size_t i = 0; i < qn_n_foreign_options; i++)
        if (is_name(qn_foreign_options[i].name, argument, n) || is_name(qn_foreign_options[i].alias, argument, n))
            return &qn_foreign_options[i];
    return NULL;
}

/* ---- Typing mistakes ---- */

enum { LONGEST_NAME = 24 };

/* Returns the Levenshtein distance with transpositions of neighbours; large for names longer than any of the tables. */
static size_t distance(const char *a, size_t n_a, const char *b)
{
    size_t rows[3][LONGEST_NAME + 1];
    const size_t n_b = strlen(b);
    if (n_a > LONGEST_NAME || n_b > LONGEST_NAME)
        return LONGEST_NAME;
    for (size_t j = 0; j <= n_b; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            size_t least = above[j - 1] + (a[i - 1] != b[j - 1]);
            if (above[j] + 1 < least)
                least = above[j] + 1;
            if (row[j - 1] + 1 < least)
                least = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && above2[j - 2] + 1 < least)
                least = above2[j - 2] + 1;
            row[j] = least;
        }
    }
    return rows[n_a % 3][n_b];
}

struct nearest {
    const char *text;
    size_t n;
    const char *name; /* the nearest so far */
    size_t distance;
};

static void compare(struct nearest *best, const char *name)
{
    const char *plain = name ? name + strspn(name, "-") : NULL;
    if (!plain || !plain[0] || !plain[1])
        return; /* single letters are all near each other */
    const size_t d = distance(best->text, best->n, plain);
    if (d <= strlen(plain) / 3 && d < best->distance) {
        best->name = name;
        best->distance = d;
    }
}

/* Returns the command's option whose name is a typing mistake or a dash away, or NULL. */
static const char *nearest_option(unsigned command, const char *argument, size_t n)
{
    const size_t dashes = strspn(argument, "-");
    struct nearest best = { .text = argument + dashes, .n = n > dashes ? n - dashes : 0, .distance = LONGEST_NAME };
    for (size_t i = 0; i < qn_n_options; i++)
        if (qn_options[i].commands & command) {
            compare(&best, qn_options[i].name);
            compare(&best, qn_options[i].alias);
            compare(&best, qn_options[i].accepted);
        }
    return best.name;
}

const char *qn_nearest_command(const char *name)
{
    struct nearest best = { .text = name, .n = strlen(name), .distance = LONGEST_NAME };
    for (size_t i = 0; i < qn_n_commands; i++)
        compare(&best, qn_commands[i].name);
    return best.name;
}

/* Writes the names of commands, as "run and chat". */
static void name_commands(unsigned commands, char *text, size_t size)
{
    qn_text_buffer to = qn_append_to(text, size);
    size_t left = 0;
    for (size_t i = 0; i < qn_n_commands; i++)
        left += (commands & qn_commands[i].id) != 0;
    for (size_t i = 0; i < qn_n_commands; i++)
        if (commands & qn_commands[i].id) {
            left--;
            qn_append(&to, "%s%s", qn_commands[i].name, left > 1 ? ", " : left ? " and " : "");
        }
}

static void refuse_unknown(const qn_command *command, const char *argument, size_t n)
{
    const int shown = (int)(n < 100 ? n : 100);
    const qn_foreign_option *foreign = find_foreign(argument, n);
    const qn_option *elsewhere = find(~0u, argument, n);
    const char *near = nearest_option(command->id, argument, n);
    if (foreign) {
        qn_cli_error("%s: unknown option '%.*s': %s", command->name, shown, argument, foreign->answer);
    } else if (elsewhere) {
        char commands[128];
        name_commands(elsewhere->commands, commands, sizeof commands);
        qn_cli_error("%s: unknown option '%.*s': it is an option of quern %s (see quern %s --help)", command->name,
                     shown, argument, commands, command->name);
    } else if (near) {
        qn_cli_error("%s: unknown option '%.*s'; did you mean %s? (see quern %s --help)", command->name, shown,
                     argument, near, command->name);
    } else {
        qn_cli_error("%s: unknown option '%.*s' (see quern %s --help)", command->name, shown, argument, command->name);
    }
}

/* ---- Values ---- */

/* Whether a text begins as a number. The whole text must be the number: strtoll would also accept " 3", "3x" and "". */
static bool plain_number_start(const char *text)
{
    return (*text >= '0' && *text <= '9') || *text == '-' || *text == '+' || *text == '.';
}

static bool set_int(const qn_option *option, const char *name, const char *value, int64_t *out)
{
    char *end;
    if (option->choices && !strcmp(value, option->choices[0])) {
        *out = 0;
        return true;
    }
    errno = 0;
    const long long number = strtoll(value, &end, 10);
    if (!plain_number_start(value) || end == value || *end) {
        qn_cli_error("%s: '%s' is not an integer%s", name, value,
                     strchr(value, ',') ? ": one value at a time, so run the command for each" : "");
        return false;
    }
    if (errno == ERANGE || (double)number < option->min || (double)number > option->max) {
        qn_cli_error("%s: %s is out of range: %.0f to %.0f", name, value, option->min, option->max);
        return false;
    }
    *out = number;
    return true;
}

static bool set_int32(const qn_option *option, const char *name, const char *value, int *out)
{
    int64_t number;
    if (!set_int(option, name, value, &number))
        return false;
    *out = (int)number;
    return true;
}

static bool set_seed(const qn_option *option, const char *name, const char *value, uint64_t *out)
{
    char *end;
    uint32_t random; /* 32 bits, so that it can be typed again */
    if (strcmp(value, "-1") == 0) {
        *out = QN_NO_SEED;
        if (option->min >= 0 && !qn_random_bytes(&random, sizeof random)) {
            qn_cli_error("%s: -1: the system has no random numbers", name);
            return false;
        }
        if (option->min >= 0)
            *out = random;
        return true;
    }
    errno = 0;
    const unsigned long long number = strtoull(value, &end, 10);
    if (*value < '0' || *value > '9' || *end) { /* strtoull would accept -2 as 2^64-2 */
        qn_cli_error("%s: '%s' is not an integer from 0 to 2^64-1, or -1 for a new seed", name, value);
        return false;
    }
    if (errno == ERANGE) {
        qn_cli_error("%s: %s is out of range: 0 to 2^64-1", name, value);
        return false;
    }
    *out = number;
    return true;
}

/* Reads a number of bytes: "8G", "1.5g", "512M", "1000000"; also "off" if min is 1. */
static bool set_bytes(const qn_option *option, const char *name, const char *value, uint64_t *out)
{
    static const char units[] = "KMGT";
    char *end;
    if (option->min <= 1 && strcmp(value, "off") == 0) {
        *out = QN_BYTES_OFF;
        return true;
    }
    const double number = strtod(value, &end);
    const char *unit = isalpha((unsigned char)*end) ? strchr(units, *end & ~0x20) : NULL;
    const bool binary = unit && (end[1] == 'i' || end[1] == 'I') && (end[2] == 'b' || end[2] == 'B') && !end[3];
    if (*value < '0' || *value > '9' || (*end && (!unit || (end[1] && !binary)))) {
        qn_cli_error("%s: '%s' is not a size: expected a number of bytes, with K, M, G or T for powers of 1024", name,
                     value);
        return false;
    }
    const double bytes = ldexp(number, unit ? 10 * (int)(unit - units + 1) : 0);
    if (!(bytes >= option->min && bytes < 0x1p63)) {
        qn_cli_error("%s: %s is out of range: at least %.0f bytes", name, value, option->min);
        return false;
    }
    if (option->max > 0 && bytes > option->max) {
        qn_cli_error("%s: %s is out of range: at most %.0f bytes", name, value, option->max);
        return false;
    }
    *out = (uint64_t)bytes;
    return true;
}

static bool set_number(const qn_option *option, const char *name, const char *value, float *out)
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
    *out = (float)number;
    return true;
}

static bool set_choice(const qn_option *option, const char *name, const char *value, const char **out)
{
    char known[256];
    qn_text_buffer text = QN_APPEND_TO(known);
    for (size_t i = 0; option->choices[i]; i++) {
        if (strcmp(option->choices[i], value) == 0) {
            *out = option->choices[i];
            return true;
        }
        qn_append(&text, "%s%s", i ? ", " : "", option->choices[i]);
    }
    qn_cli_error("%s: '%s' is not one of %s", name, value, known);
    return false;
}

static bool set(const qn_option *option, const char *name, const char *value, qn_args *args)
{
    void *out = (char *)args + option->offset;
    switch (option->kind) {
    case QN_OPTION_FLAG: *(bool *)out = true; return true;
    case QN_OPTION_TEXT: *(const char **)out = value; return true;
    case QN_OPTION_TEXTS: {
        qn_texts *texts = out;
        if (texts->count == QN_TEXTS_MAX) {
            qn_cli_error("%s: given more than %d times", name, QN_TEXTS_MAX);
            return false;
        }
        texts->at[texts->count++] = value;
        return true;
    }
    case QN_OPTION_INT: return set_int(option, name, value, out);
    case QN_OPTION_INT32: return set_int32(option, name, value, out);
    case QN_OPTION_SEED: return set_seed(option, name, value, out);
    case QN_OPTION_BYTES: return set_bytes(option, name, value, out);
    case QN_OPTION_NUMBER: return set_number(option, name, value, out);
    case QN_OPTION_ENUM: return set_choice(option, name, value, out);
    }
    return false;
}

/* ---- Arguments ---- */

/* Returns the option of an argument that is a short name with its value attached, "-n3"; NULL: it is none, or a long
 * name with a missing dash: "-no-cnv", "-prompt". */
static const qn_option *find_attached(const qn_command *command, const char *argument)
{
    const qn_option *option = argument[1] != '-' && argument[2] ? find(command->id, argument, 2) : NULL;
    if (!option || option->kind == QN_OPTION_FLAG || nearest_option(command->id, argument, strlen(argument)))
        return NULL;
    const bool number = option->kind == QN_OPTION_INT || option->kind == QN_OPTION_INT32 ||
                        option->kind == QN_OPTION_SEED || option->kind == QN_OPTION_BYTES ||
                        option->kind == QN_OPTION_NUMBER;
    return !number || plain_number_start(argument + 2) ? option : NULL;
}

/* Parses the option at argv[*i]; *i becomes the last argument used. */
static qn_args_result parse_option(const qn_command *command, int argc, char **argv, int *i, qn_args *args)
{
    const char *argument = argv[*i];
    const char *equals = argument[1] == '-' ? strchr(argument, '=') : NULL;
    size_t length = equals ? (size_t)(equals - argument) : strlen(argument);
    const char *value = equals ? equals + 1 : NULL;
    const qn_option *option = find(command->id, argument, length);
    const qn_foreign_option *foreign = option ? NULL : find_foreign(argument, length);
    if (foreign && !equals && (foreign->ignored_by & command->id))
        return QN_ARGS_OK;
    if (!option && !foreign && (option = find_attached(command, argument))) {
        length = 2;
        value = argument + 2;
    }
    if (!option) {
        refuse_unknown(command, argument, length);
        return QN_ARGS_BAD;
    }
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)length, argument);
    if (option->kind == QN_OPTION_FLAG && value) {
        qn_cli_error("%s: takes no value, '%s' was given", name, value);
        return QN_ARGS_BAD;
    }
    if (option->kind != QN_OPTION_FLAG && !value) {
        if (*i + 1 == argc) {
            qn_cli_error("%s: a value is missing", name);
            return QN_ARGS_BAD;
        }
        value = argv[++*i];
    }
    args->is_given[option - qn_options] = true;
    return set(option, name, value, args) ? QN_ARGS_OK : QN_ARGS_BAD;
}

qn_args_result qn_args_parse(const qn_command *command, int argc, char **argv, qn_args *args)
{
    bool options_end = false;
    for (int i = 1; i < argc; i++) {
        if (options_end || argv[i][0] != '-' || !argv[i][1]) {
            if (args->n_operands == command->max_operands) {
                const bool counts = strspn(argv[i], "0123456789") == strlen(argv[i]) && find(command->id, "-t", 2);
                qn_cli_error("%s: unexpected argument '%s'%s%s (see quern %s --help)", command->name, argv[i],
                             counts ? "; for that many threads use -t " : "", counts ? argv[i] : "", command->name);
                return QN_ARGS_BAD;
            }
            args->operands[args->n_operands++] = argv[i];
        } else if (strcmp(argv[i], "--") == 0) {
            options_end = true;
        } else if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0) {
            qn_print_help(command);
            return QN_ARGS_HELP;
        } else {
            const qn_args_result result = parse_option(command, argc, argv, &i, args);
            if (result != QN_ARGS_OK)
                return result;
        }
    }
    if (args->n_operands < command->min_operands) {
        qn_cli_error("%s: too few arguments: usage: quern %s", command->name, command->usage);
        return QN_ARGS_BAD;
    }
    return QN_ARGS_OK;
}
