/* Command lines: one strict option parser for every subcommand, and the help text made from the same table.
 *
 * An unknown option, a missing value, something that is not a number or is out of range is bad usage: one line on standard
 * error and exit status 2. "--opt value" and "--opt=value" are the same; "--" ends the options. */
#ifndef QN_CLI_ARGS_H
#define QN_CLI_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum qn_option_kind {
    QN_OPTION_FLAG,   /* bool: set when given; takes no value */
    QN_OPTION_TEXT,   /* const char *: the value as it stands */
    QN_OPTION_TEXTS,  /* qn_texts: every value of an option that may be repeated */
    QN_OPTION_INT,    /* int64_t from min to max */
    QN_OPTION_U64,    /* uint64_t, any */
    QN_OPTION_NUMBER, /* double from min to max, finite */
    QN_OPTION_CHOICE  /* const char *: one of `choices` */
} qn_option_kind;

enum { QN_TEXTS_MAX = 64 };

typedef struct qn_texts {
    const char *at[QN_TEXTS_MAX];
    size_t count;
} qn_texts;

typedef struct qn_option {
    const char *name;  /* "--temp" or "-n" */
    const char *alias; /* another name, or NULL */
    qn_option_kind kind;
    void *out;              /* where the value goes: the type that the kind names */
    const char *value_name; /* "N", for the help text; NULL for flags */
    const char *help;
    double min, max;            /* numbers: inclusive */
    const char *const *choices; /* QN_OPTION_CHOICE: NULL-terminated */
} qn_option;

/* Rows of an option table. */
#define QN_OPT_FLAG(name, alias, out, help) ((qn_option){ name, alias, QN_OPTION_FLAG, out, NULL, help, 0, 0, NULL })
#define QN_OPT_TEXT(name, alias, out, value, help) ((qn_option){ name, alias, QN_OPTION_TEXT, out, value, help, 0, 0, NULL })
#define QN_OPT_TEXTS(name, alias, out, value, help) ((qn_option){ name, alias, QN_OPTION_TEXTS, out, value, help, 0, 0, NULL })
#define QN_OPT_U64(name, alias, out, value, help) ((qn_option){ name, alias, QN_OPTION_U64, out, value, help, 0, 0, NULL })
#define QN_OPT_INT(name, alias, out, value, min, max, help)                                                                    \
    ((qn_option){ name, alias, QN_OPTION_INT, out, value, help, min, max, NULL })
#define QN_OPT_NUMBER(name, alias, out, value, min, max, help)                                                                 \
    ((qn_option){ name, alias, QN_OPTION_NUMBER, out, value, help, min, max, NULL })
#define QN_OPT_CHOICE(name, alias, out, value, choices, help)                                                                  \
    ((qn_option){ name, alias, QN_OPTION_CHOICE, out, value, help, 0, 0, choices })

typedef struct qn_command_line {
    const char *usage;   /* "run -m MODEL -p PROMPT [options]", what follows "quern " */
    const char *purpose; /* what the subcommand does: one or more lines, without the last newline */
    const qn_option *options;
    size_t n_options;
    const char **operands; /* [max_operands], filled in order; those not given stay as they were */
    size_t min_operands, max_operands;
} qn_command_line;

typedef enum qn_args_result { QN_ARGS_OK, QN_ARGS_HELP, QN_ARGS_BAD } qn_args_result;

/* qn_args_parse - argv[0] is the subcommand's name and is skipped. QN_ARGS_HELP: --help was there and has been answered on
 * standard output. QN_ARGS_BAD: the reason has been printed. */
qn_args_result qn_args_parse(const qn_command_line *line, int argc, char **argv);

/* qn_args_exit - the exit status that ends the program after a result other than QN_ARGS_OK. */
int qn_args_exit(qn_args_result result);

#endif
