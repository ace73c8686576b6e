/* Options that say how tokens are sampled: each alone has bench and bench-serve sample, and sets its own member and no
 * other; a seed alone does not. (tests/e2e/bench_modes.sh has their names and what is reported.) */
#include "helper_assert.h"
#include "helper_test.h"

#include "cli/args.h"

#include <stdlib.h>

static void parse(const qn_command *command, const char *name, const char *value, qn_args *args)
{
    char *argv[] = { (char *)command->name, (char *)name, (char *)value, "http://localhost", NULL };
    memset(args, 0, sizeof *args);
    if (command->defaults)
        command->defaults(args);
    assert_int_equal(qn_args_parse(command, 3 + (int)command->min_operands, argv, args), QN_ARGS_OK);
}

static double value_at(const qn_option *option, const void *member)
{
    return option->kind == QN_OPTION_NUMBER ? (double)*(const float *)member : (double)*(const int *)member;
}

_Static_assert(sizeof(float) == sizeof(int), "members of one size");

/* Returns the number of options of a command that are members of qn_sampling. */
static size_t check_command(const char *name)
{
    const qn_command *command = qn_command_find(name);
    const size_t begin = offsetof(qn_args, sampling), end = begin + sizeof(qn_sampling);
    size_t n = 0;
    for (size_t i = 0; i < qn_n_options; i++) {
        static qn_args before, args;
        const qn_option *option = &qn_options[i];
        char value[32];
        if (!(option->commands & command->id) || option->offset < begin || option->offset >= end)
            continue;
        label("%s %s", name, option->name);
        parse(command, "--seed", "7", &before);
        assert_false(qn_args_has_sampling(&before));
        if (option->kind == QN_OPTION_SEED)
            continue;
        assert_true(option->kind == QN_OPTION_NUMBER || option->kind == QN_OPTION_INT32);
        const double wanted = option->max < 3 ? (option->kind == QN_OPTION_INT32 ? 1 : 0.5) : 2;
        snprintf(value, sizeof value, "%g", wanted);
        parse(command, option->name, value, &args);
        assert_true(qn_args_has_sampling(&args));
        char *member = (char *)&args + option->offset;
        assert_float_equal(value_at(option, member), wanted, 0);
        memcpy(member, (const char *)&before + option->offset, sizeof(int));
        args.sampling.seed = before.sampling.seed;
        assert_memory_equal(&args.sampling, &before.sampling, sizeof args.sampling);
        n++;
    }
    return n;
}

TEST(each_option_of_sampling_alone)
{
    assert_int_equal(check_command("bench"), 19);
    assert_int_equal(check_command("bench-serve"), 4);
}

TEST(a_sequence_breaker_alone)
{
    static qn_args args;
    parse(qn_command_find("bench"), "--dry-sequence-breaker", "none", &args);
    assert_true(qn_args_has_sampling(&args));
    parse(qn_command_find("bench"), "-p", "8", &args);
    assert_false(qn_args_has_sampling(&args));
}
