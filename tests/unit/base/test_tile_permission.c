/* AMX: a process may use tile registers if the kernel permits them; with a signal stack that is too small for them it
 * does not. QN_CPU=amx then means the level below, and says so. Skipped where the CPU has no AMX. */
#include "helper_assert.h"

#include "base/cpu.h"
#include "base/tile_permission.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Enough for AVX-512, not for tiles. */
enum { SMALL_STACK = 5 << 10 };

/* In a process of its own: 0 passed, 77 no such CPU. A permission cannot be given back, so it is not requested before
 * the signal stack is small. */
static int refused(void)
{
    static unsigned char memory[SMALL_STACK];
    const stack_t small = { .ss_sp = memory, .ss_size = sizeof memory }, none = { .ss_flags = SS_DISABLE };
    unsigned features;
    setenv("QN_CPU", "amx", 1);
    if (sigaltstack(&small, NULL) != 0 || qn_request_tiles())
        return 77; /* the stack is large enough, or this kernel does not look at it */
    if (sigaltstack(&none, NULL) != 0)
        return 1;
    const bool has_amx = qn_request_tiles(); /* now it may: the CPU and the kernel have it */
    if (!has_amx)
        return 77;
    return qn_cpu_features(&features) == QN_OK && !qn_cpu_notice() && !strcmp(qn_cpu_name(features), "amx") ? 0 : 2;
}

static int refused_features(void)
{
    static unsigned char memory[SMALL_STACK];
    const stack_t small = { .ss_sp = memory, .ss_size = sizeof memory };
    unsigned features;
    setenv("QN_CPU", "amx", 1);
    if (sigaltstack(&small, NULL) != 0)
        return 77;
    const qn_status status = qn_cpu_features(&features);
    if (status == QN_ERR_UNSUPPORTED || status == QN_ERR_INVALID)
        return 77; /* no such CPU, or compiler */
    if (!strcmp(qn_cpu_name(features), "amx"))
        return 77; /* permitted all the same */
    const char *notice = qn_cpu_notice();
    if (strcmp(qn_cpu_name(features), "avx512") != 0 || !notice || !strstr(notice, "does not permit"))
        return 1;
    unsetenv("QN_CPU");
    return qn_cpu_features(&features) == QN_OK && !strcmp(qn_cpu_name(features), "avx512") && !qn_cpu_notice() ? 0 : 2;
}

static void in_process(int (*run)(void))
{
    int status;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (!child)
        _exit(run());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

TEST(a_small_signal_stack_refuses_the_permission)
{
    in_process(refused);
}

TEST(without_the_permission_the_level_below_is_used)
{
    in_process(refused_features);
}
