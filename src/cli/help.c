/* Prints help texts and the manual page's list of options, from the tables of commands and options. */
#include "cli/args.h"

#include <stdio.h>
#include <string.h>

void qn_print_help(const qn_command *command)
{
    printf("usage: quern %s\n\n%s\n\n", command->usage, command->purpose);
    for (size_t i = 0; i < qn_n_options; i++) {
        const qn_option *option = &qn_options[i];
        char left[64];
        if (!(option->commands & command->id))
            continue;
        snprintf(left, sizeof left, "%s%s%s%s%s", option->name, option->alias ? ", " : "",
                 option->alias ? option->alias : "", option->value ? " " : "", option->value ? option->value : "");
        printf("  %-24s %s\n", left, option->help);
    }
    printf("  %-24s %s\n", "-h, --help", "show this text");
    printf("\nIf an option is given twice, the last value counts, unless its help says otherwise.\n");
}

/* ---- The manual page ---- */

static void print_flag(const char *name)
{
    printf("Fl %s%s", name[1] == '-' ? "Fl " : "", name + strspn(name, "-"));
}

/* Prints text for mdoc: each sentence on a line, backslashes doubled, `-` before a digit or letter as a minus sign. */
static void print_sentences(const char *text)
{
    for (const char *c = text; *c; c++) {
        if (*c == '.' && c[1] == ' ' && c[2] >= 'A') {
            puts(".");
            c++;
        } else if (*c == '\\') {
            fputs("\\e", stdout);
        } else if (*c == '-' && (c == text || c[-1] == ' ' || c[-1] == '(' || c[-1] == '-')) {
            fputs("\\-", stdout);
        } else {
            putchar(*c);
        }
    }
}

static void print_option(const qn_option *option)
{
    fputs(".It ", stdout);
    print_flag(option->name);
    if (option->alias) {
        fputs(" , ", stdout);
        print_flag(option->alias);
    }
    if (option->value)
        printf(" Ar %s", option->value);
    fputs("\n.Pq Cm", stdout);
    for (size_t i = 0; i < qn_n_commands; i++)
        if (option->commands & qn_commands[i].id)
            printf(" %s", qn_commands[i].name);
    putchar('\n');
    const char first = option->help[0];
    putchar(first >= 'a' && first <= 'z' ? first - 'a' + 'A' : first);
    print_sentences(option->help + 1);
    puts(".");
    if (option->more) {
        print_sentences(option->more);
        putchar('\n');
    }
}

void qn_print_man(void)
{
    puts(".Bl -tag -width Ds");
    for (size_t i = 0; i < qn_n_options; i++)
        print_option(&qn_options[i]);
    puts(".It Fl h , Fl Fl help\n.Pq Cm all\nShow the command's help.\n.El");
}
