/* The assertions of the unit tests: what a failed one prints. The program runs itself with failing tests and reads
 * their output. */
#include "helper_assert.h"

#include "base/status.h"

#include <unistd.h>

/* ---- Tests that fail ---- */

static void fails_in_a_case(void **unused)
{
    (void)unused;
    label("%s", "outer");
    for (int i = 0; i < 3; i++) {
        label("inner %d", i);
        assert_true(i < 3);
    }
    for (int i = 0; i < 3; i++) {
        label("other %d", i);
        assert_int_equal(i, 0);
    }
}

static void fails_without_a_label(void **unused)
{
    (void)unused;
    assert_string_equal("one", "two");
}

static void fails_with_a_status(void **unused)
{
    (void)unused;
    label("a status");
    assert_ok(qn_fail(QN_ERR_INVALID, "n_rows: 3, expected %d", 4));
}

static void fails_with_long_labels(void **unused)
{
    (void)unused;
    label("%400s", "long");
    label("%400s", "longer");
    label("%400s", "not printed");
    fail_msg("%d is %s", 1, "wrong");
}

static int run_failing_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fails_in_a_case),
        cmocka_unit_test(fails_without_a_label),
        cmocka_unit_test(fails_with_a_status),
        cmocka_unit_test(fails_with_long_labels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* ---- Their output ---- */

static char output[1 << 14];

static int read_output(void **unused)
{
    (void)unused;
    char program[512], command[600];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0)
        return 1;
    program[length] = '\0';
    snprintf(command, sizeof command, "'%s' fail 2>&1", program);
    FILE *pipe = popen(command, "r");
    if (!pipe)
        return 1;
    output[fread(output, 1, sizeof output - 1, pipe)] = '\0';
    return pclose(pipe) == 0; /* the tests fail */
}

static size_t count_of(const char *part)
{
    size_t n = 0;
    for (const char *at = output; (at = strstr(at, part)) != NULL; at++)
        n++;
    return n;
}

static void the_case_is_printed(void **unused)
{
    (void)unused;
    assert_int_equal(count_of("case: outer, other 1\n"), 1);
    assert_int_equal(count_of("inner"), 0);
    assert_int_equal(count_of("0x1 != 0"), 1);
}

/* A failed test leaves its labels without their ends: the next tests begin without labels. */
static void labels_end_with_their_test(void **unused)
{
    (void)unused;
    assert_int_equal(count_of("case: "), 3);
    assert_int_equal(count_of("outer"), 1);
    assert_int_equal(count_of("case: a status\n"), 1);
}

static void the_error_is_printed(void **unused)
{
    (void)unused;
    assert_int_equal(
        count_of(": qn_fail(QN_ERR_INVALID, \"n_rows: 3, expected %d\", 4): invalid argument: n_rows: 3, expected 4\n"),
        1);
    assert_int_equal(count_of("test_assert.c:"), 6); /* messages of assert_ok and fail_msg, and cmocka's of all four */
    assert_int_equal(count_of(": 1 is wrong\n"), 1);
}

static void long_labels_are_cut(void **unused)
{
    (void)unused;
    assert_int_equal(count_of(" long, "), 1);
    assert_int_equal(count_of("not printed"), 0);
}

int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1)
        return run_failing_tests();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_case_is_printed),
        cmocka_unit_test(labels_end_with_their_test),
        cmocka_unit_test(the_error_is_printed),
        cmocka_unit_test(long_labels_are_cut),
    };
    return cmocka_run_group_tests(tests, read_output, NULL);
}
