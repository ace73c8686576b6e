/* The options --json-schema, --grammar and --choices become a grammar. */
#include "cli/grammar.h"

#include "base/strings.h"
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

int qn_check_grammar(const qn_args *args)
{
    const char *const given[] = { args->json_schema ? "--json-schema" : NULL, args->grammar ? "--grammar" : NULL,
                                  args->choices ? "--choices" : NULL, args->ignore_end ? "--ignore-eos" : NULL };
    const char *first = NULL;
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        if (first && given[i]) {
            qn_cli_error("%s and %s: only one of them can be given", first, given[i]);
            return QN_EXIT_USAGE;
        }
        first = first ? first : given[i];
    }
    const char *const style = args->json_space   ? "--json-whitespace"
                              : args->json_order ? "--json-property-order"
                                                 : NULL;
    if (style && !args->json_schema) {
        qn_cli_error("%s: needs --json-schema", style);
        return QN_EXIT_USAGE;
    }
    if (args->jump_forward && !args->json_schema && !args->grammar && !args->choices) {
        qn_cli_error("--jump-forward: needs a grammar or schema");
        return QN_EXIT_USAGE;
    }
    if (args->choices && (!*args->choices || *args->choices == ',' || args->choices[strlen(args->choices) - 1] == ',' ||
                          strstr(args->choices, ",,"))) {
        qn_cli_error("--choices: '%s' has an empty choice", args->choices);
        return QN_EXIT_USAGE;
    }
    return QN_EXIT_DONE;
}

static int find_name(const char *const *names, const char *name)
{
    int i = 0;
    while (name && names[i] && strcmp(names[i], name) != 0)
        i++;
    return i;
}

qn_jump_forward qn_find_jump_forward(const qn_args *args)
{
    return (qn_jump_forward)find_name(qn_jumps, args->jump_forward);
}

/* `value` is the option's: a schema or grammar itself if `is_text`, else a file's name. */
static int load_text(const char *option, const char *value, bool is_text, qn_grammar_kind kind, const qn_args *args,
                     qn_model *model, qn_grammar **out)
{
    const qn_json_style style = { .size = sizeof style,
                                  .space = (qn_json_space)find_name(qn_json_spaces, args->json_space),
                                  .order = (qn_json_order)find_name(qn_json_orders, args->json_order),
                                  .closed = true };
    const char *name;
    char *text;
    size_t length;
    if (!qn_read_option(option, value, is_text, UINT64_MAX, &text, &length, &name))
        return QN_EXIT_FAILED;
    const qn_status status = qn_grammar_create_in(model, NULL, &style, kind, text, length, out);
    free(text);
    if (status == QN_OK)
        return QN_EXIT_DONE;
    qn_cli_error("%s: %s", name, qn_error_text());
    return QN_EXIT_FAILED;
}

/* "a,b" as a list of strings. */
static int load_choices(const char *list, qn_model *model, qn_grammar **out)
{
    size_t n = 0, n_most = 1;
    for (const char *c = list; *c; c++)
        n_most += *c == ',';
    char *text = strdup(list);
    const char **choices = malloc(n_most * sizeof *choices);
    int status = QN_EXIT_FAILED;
    if (text && choices) {
        char *rest = text;
        for (char *choice; (choice = qn_strsep(&rest, ","));)
            choices[n++] = choice;
        status = QN_EXIT_DONE;
        if (qn_grammar_create_choices(model, choices, n, out) != QN_OK) {
            qn_cli_error("--choices: %s", qn_error_text());
            status = QN_EXIT_FAILED;
        }
    } else {
        qn_cli_error("--choices: no memory for %zu texts", n_most);
    }
    free(choices);
    free(text);
    return status;
}

int qn_load_grammar(const qn_args *args, qn_model *model, qn_grammar **out)
{
    *out = NULL;
    if (args->json_schema)
        return load_text("--json-schema", args->json_schema, qn_is_json_object(args->json_schema),
                         QN_GRAMMAR_SCHEMA_STRICT, args, model, out);
    if (args->grammar)
        return load_text("--grammar", args->grammar, strstr(args->grammar, "::=") != NULL, QN_GRAMMAR_GBNF, args, model,
                         out);
    return args->choices ? load_choices(args->choices, model, out) : QN_EXIT_DONE;
}
