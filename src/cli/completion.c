/* Shell completion of commands, options and values, from the tables of commands and options. */
#include "cli/args.h"

#include <stdio.h>
#include <string.h>

/* The value of an option. */
enum value_kind { NO_VALUE, ANY_VALUE, A_FILE /* or a folder */, A_CHOICE };

static enum value_kind value_kind_of(const qn_option *option)
{
    if (option->kind == QN_OPTION_FLAG)
        return NO_VALUE;
    if (option->choices)
        return A_CHOICE;
    return strcmp(option->value, "FILE") == 0 || strcmp(option->value, "DIR") == 0 ? A_FILE : ANY_VALUE;
}

static void print_choices(const qn_option *option)
{
    for (size_t i = 0; option->choices[i]; i++)
        printf("%s%s", i ? " " : "", option->choices[i]);
}

static void print_commands(void)
{
    for (size_t i = 0; i < qn_n_commands; i++)
        printf("%s ", qn_commands[i].name);
    fputs("help version", stdout);
}

/* Prints text between single quotes, with a backslash before each character of `escaped`. */
static void print_quoted(const char *text, const char *escaped)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", stdout);
        else
            printf("%s%c", strchr(escaped, *text) ? "\\" : "", *text);
    }
}

/* ---- bash ---- */

static void print_bash_options(const qn_command *command)
{
    printf("        %s) options='", command->name);
    for (size_t i = 0; i < qn_n_options; i++)
        if (qn_options[i].commands & command->id)
            printf("%s%s%s ", qn_options[i].name, qn_options[i].alias ? " " : "",
                   qn_options[i].alias ? qn_options[i].alias : "");
    puts("-h --help' ;;");
}

static void print_bash_choices(const qn_command *command, const qn_option *option)
{
    if (!(option->commands & command->id) || value_kind_of(option) != A_CHOICE)
        return;
    printf("    '%s %s'", command->name, option->name);
    if (option->alias)
        printf(" | '%s %s'", command->name, option->alias);
    fputs(") options='", stdout);
    print_choices(option);
    puts("' ;;");
}

/* Prints the completion code of bash. Without candidates bash completes file names. */
static void print_bash(void)
{
    puts("_quern() {\n    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} "
         "command=${COMP_WORDS[1]} "
         "options=\n"
         "    COMPREPLY=()\n    case \"$command $before\" in");
    for (size_t c = 0; c < qn_n_commands; c++)
        for (size_t i = 0; i < qn_n_options; i++)
            print_bash_choices(&qn_commands[c], &qn_options[i]);
    fputs("    esac\n    if [ \"$COMP_CWORD\" -eq 1 ] || [ \"$COMP_CWORD $command\" = '2 help' ]; then\n        "
          "options='",
          stdout);
    print_commands();
    puts("'\n    elif [ -z \"$options\" ] && [ \"${word:0:1}\" = - ]; then\n        case $command in");
    for (size_t c = 0; c < qn_n_commands; c++)
        print_bash_options(&qn_commands[c]);
    puts("        esac\n    fi\n    [ -z \"$options\" ] || COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n}\n"
         "complete -o default -F _quern quern");
}

/* ---- zsh ---- */

static void print_zsh_option(const qn_option *option)
{
    fputs("            ", stdout);
    if (option->kind == QN_OPTION_TEXTS)
        fputs("'*'", stdout);
    else if (option->alias)
        printf("'(%s %s)'", option->name, option->alias);
    if (option->alias)
        printf("{%s,%s}'[", option->name, option->alias);
    else
        printf("'%s[", option->name);
    print_quoted(option->help, "[]:\\");
    putchar(']');
    switch (value_kind_of(option)) {
    case NO_VALUE: break;
    case ANY_VALUE: printf(":%s: ", option->value); break;
    case A_FILE: printf(":%s:_files", option->value); break;
    case A_CHOICE:
        printf(":%s:(", option->value);
        print_choices(option);
        putchar(')');
        break;
    }
    puts("' \\");
}

static void print_zsh(void)
{
    puts("#compdef quern\n_quern() {\n    local -a commands=(");
    for (size_t c = 0; c < qn_n_commands; c++) {
        printf("        '%s:", qn_commands[c].name);
        print_quoted(qn_commands[c].brief, ":\\");
        puts("'");
    }
    puts("        'help:the options of a command'\n        'version:the version and how it was built'\n    )\n"
         "    if ((CURRENT == 2)) || [[ $words[2] == help ]]; then\n        _describe command commands\n        "
         "return\n    fi\n"
         "    local command=$words[2]\n    shift words\n    ((CURRENT--))\n    case $command in");
    for (size_t c = 0; c < qn_n_commands; c++) {
        printf("    %s)\n        _arguments \\\n", qn_commands[c].name);
        for (size_t i = 0; i < qn_n_options; i++)
            if (qn_options[i].commands & qn_commands[c].id)
                print_zsh_option(&qn_options[i]);
        puts("            '(-h --help)'{-h,--help}'[show the options]' \\\n            '*:file:_files'\n        ;;");
    }
    puts("    esac\n}\n_quern \"$@\"");
}

/* ---- fish ---- */

static void print_fish_name(const char *name)
{
    printf(name[1] == '-' ? " -l %s" : " -s %s", name + strspn(name, "-"));
}

static void print_fish_text(const char *text)
{
    fputs(" -d '", stdout);
    for (; *text; text++)
        printf("%s%c", *text == '\'' || *text == '\\' ? "\\" : "", *text);
    putchar('\'');
}

static void print_fish_option(const qn_option *option)
{
    fputs("complete -c quern -n '__fish_seen_subcommand_from", stdout);
    for (size_t c = 0; c < qn_n_commands; c++)
        if (option->commands & qn_commands[c].id)
            printf(" %s", qn_commands[c].name);
    putchar('\'');
    print_fish_name(option->name);
    if (option->alias)
        print_fish_name(option->alias);
    print_fish_text(option->help);
    switch (value_kind_of(option)) {
    case NO_VALUE: break;
    case ANY_VALUE: fputs(" -x", stdout); break;
    case A_FILE: fputs(" -r -F", stdout); break;
    case A_CHOICE:
        fputs(" -x -a '", stdout);
        print_choices(option);
        putchar('\'');
        break;
    }
    putchar('\n');
}

static void print_fish(void)
{
    for (size_t c = 0; c < qn_n_commands; c++) {
        printf("complete -c quern -n __fish_use_subcommand -f -a %s", qn_commands[c].name);
        print_fish_text(qn_commands[c].brief);
        putchar('\n');
    }
    puts("complete -c quern -n __fish_use_subcommand -f -a help -d 'the options of a command'\n"
         "complete -c quern -n __fish_use_subcommand -f -a version -d 'the version and how it was built'\n"
         "complete -c quern -s h -l help -d 'show the options'");
    fputs("complete -c quern -n '__fish_seen_subcommand_from help' -f -a '", stdout);
    print_commands();
    puts("'");
    for (size_t i = 0; i < qn_n_options; i++)
        print_fish_option(&qn_options[i]);
}

bool qn_print_completion(const char *shell)
{
    if (strcmp(shell, "bash") == 0)
        print_bash();
    else if (strcmp(shell, "zsh") == 0)
        print_zsh();
    else if (strcmp(shell, "fish") == 0)
        print_fish();
    else
        return false;
    return true;
}
