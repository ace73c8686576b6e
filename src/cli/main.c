/* The program: finds the command, parses its arguments and runs it. */
#include "base/append.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/numa.h"
#include "base/program.h"
#include "cli/cli.h"
#include "cli/signals.h"

#include "device/registry.h"

#include <string.h>
#include <unistd.h>

static void usage(FILE *stream)
{
    fprintf(stream, "usage: quern COMMAND [options]\n\nRuns 1-bit and ternary language models.\n\n");
    for (size_t i = 0; i < qn_n_commands; i++)
        fprintf(stream, "  %-12s %s\n", qn_commands[i].name, qn_commands[i].brief);
    fprintf(stream, "\nquern help COMMAND lists a command's options; quern version prints the version.\n");
}

/* Prints the version. The first line is only that, for scripts. */
static void print_version(void)
{
    const qn_backend *backend;
    printf("quern %s\nbuilt for %s by %s, with%s\n", qn_version(), QN_BUILD_SYSTEM, QN_BUILD_COMPILER,
           *QN_BUILD_LIBRARIES ? QN_BUILD_LIBRARIES : " no optional library");
    for (size_t i = 0; (backend = qn_device_backend(i)); i++) {
        char text[QN_DEVICE_TEXT_MAX] = "";
        if (!backend->kernels)
            continue;
        backend->kernels->describe_built_in(text);
        printf("GPU kernels: %s%scompiled when they are needed\n", text, *text ? "; others " : "");
    }
}

static bool is_one_of(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (strcmp(name, *names) == 0)
            return true;
    return false;
}

static int unknown_command(const char *name)
{
    const char *near = qn_nearest_command(name);
    const qn_foreign_command *foreign = qn_foreign_command_find(name);
    if (foreign)
        qn_cli_error("unknown command '%s': %s (see quern help)", name, foreign->answer);
    else if (near)
        qn_cli_error("unknown command '%s'; did you mean quern %s? (see quern help)", name, near);
    else if (*name != '-' && strstr(name, ".gguf"))
        qn_cli_error("unknown command '%s'; did you mean quern run %s, or quern chat %s? (see quern help)", name, name,
                     name);
    else if (*name == '-')
        qn_cli_error("unknown option '%s'; a command comes first, as in quern run %s (see quern help)", name, name);
    else
        qn_cli_error("unknown command '%s' (see quern help)", name);
    return QN_EXIT_USAGE;
}

/* quern help [COMMAND]; `quern help --man` prints the manual page's list of options, `quern help --completion SHELL`
 * completion code for a shell. */
static int help(int argc, char **argv)
{
    if (argc < 2) {
        usage(stdout);
        return QN_EXIT_DONE;
    }
    const qn_command *command = qn_command_find(argv[1]);
    if (strcmp(argv[1], "--completion") == 0) {
        if (argc == 3 && qn_print_completion(argv[2]))
            return QN_EXIT_DONE;
        qn_cli_error("help --completion: expected bash, zsh or fish");
        return QN_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--man") == 0)
        qn_print_man();
    else if (command)
        qn_print_help(command);
    else
        return unknown_command(argv[1]);
    return QN_EXIT_DONE;
}

/* Another program's command of two words, as "server stop"; NULL: it is none, or the second is a file. */
static const qn_foreign_command *find_foreign_pair(int argc, char **argv)
{
    char words[64];
    if (argc < 3 || !qn_print(words, sizeof words, "%s %s", argv[1], argv[2]) || qn_file_exists(argv[2]))
        return NULL;
    return qn_foreign_command_find(words);
}

/* Before threads are started and memory is written. If the system refuses, the program is only slower. */
static void apply_numa(const qn_args *args)
{
    const qn_numa mode = !args->numa                         ? QN_NUMA_OFF
                         : !strcmp(args->numa, "distribute") ? QN_NUMA_DISTRIBUTE
                         : !strcmp(args->numa, "isolate")    ? QN_NUMA_ISOLATE
                                                             : QN_NUMA_OFF;
    qn_topology topology;
    if (mode == QN_NUMA_OFF)
        return;
    qn_topology_read("", &topology);
    if (qn_numa_apply(mode, &topology) && !args->quiet)
        qn_cli_error("note: --numa %s: %s", args->numa, qn_error_text());
    else if (topology.n_nodes < 2 && !args->quiet)
        qn_cli_error("note: --numa %s: all processors are on one NUMA node", args->numa);
}

static int dispatch(int argc, char **argv)
{
    static const char *const version_names[] = { "version", "--version", "-v", "-V", NULL };
    static const char *const help_names[] = { "help", "--help", "-h", NULL };
    if (argc < 2) {
        usage(stderr);
        return QN_EXIT_USAGE;
    }
    if (is_one_of(argv[1], version_names)) {
        print_version();
        return QN_EXIT_DONE;
    }
    if (is_one_of(argv[1], help_names))
        return help(argc - 1, argv + 1);
    const qn_foreign_command *pair = find_foreign_pair(argc, argv);
    if (pair) {
        qn_cli_error("unknown command '%s': %s (see quern help)", pair->name, pair->answer);
        return QN_EXIT_USAGE;
    }
    const qn_command *command = qn_command_find(argv[1]);
    if (!command)
        return unknown_command(argv[1]);
    qn_args args = { 0 };
    if (command->defaults)
        command->defaults(&args);
    switch (qn_args_parse(command, argc - 1, argv + 1, &args)) {
    case QN_ARGS_HELP: return QN_EXIT_DONE;
    case QN_ARGS_BAD: return QN_EXIT_USAGE;
    case QN_ARGS_OK: break;
    }
    apply_numa(&args);
    return command->run(&args);
}

int main(int argc, char **argv)
{
    argv = qn_program_begin(&argc, argv);
    qn_signals_install();
    const char *notice = qn_cpu_notice();
    if (notice)
        qn_cli_note("%s", notice);
    const int status = qn_out_finish(dispatch(argc, argv));
    qn_signals_exit();
    return status;
}
