/* How unit tests are registered. A test is written once, where it stands: the cases of a program are those of its
 * file, in the order of their lines. The program's main() is that of helper_main.c, unless the file has its own.
 *
 *   TEST(tokens_are_counted)
 *   {
 *       assert_int_equal(...);
 *   }
 */
#ifndef QN_TESTS_HELPER_TEST_H
#define QN_TESTS_HELPER_TEST_H

#include <stddef.h>

/* What is done before or after a test, or before the first and after the last; not 0 fails. */
typedef int test_fixture(void);

/* One case; a test of a row of a table has `run_row` in place of `run`. */
struct test_case {
    const char *name;
    int line;
    void (*run)(void);
    void (*run_row)(const void *row);
    const void *row;
    test_fixture *set_up, *tear_down;
};

/* add_test - adds a case in the order of lines, those of one line in the order of the calls. */
void add_test(struct test_case test);

/* set_group, set_every - fixtures of the whole program, and of each test without its own; NULL for none. */
void set_group(test_fixture *set_up, test_fixture *tear_down);
void set_every(test_fixture *set_up, test_fixture *tear_down);

/* run_all_tests - runs the cases. Returns how many failed, for main(). */
int run_all_tests(void);

#define TEST(name) TEST_WITH(name, NULL, NULL)

/* TEST_WITH - a test between fixtures of its own, NULL for none. */
#define TEST_WITH(name, before, after)                                                                                 \
    static void name(void);                                                                                            \
    __attribute__((constructor)) static void register_##name(void)                                                     \
    {                                                                                                                  \
        add_test((struct test_case){ #name, __LINE__, .run = name, .set_up = before, .tear_down = after });            \
    }                                                                                                                  \
    static void name(void)

/* TEST_EACH - a case for each row of a table, with the row's name. The test's body has the row: const type *variable.
 */
#define TEST_EACH(test, type, variable, table)                                                                         \
    static void test(const type *variable);                                                                            \
    static void run_##test(const void *row)                                                                            \
    {                                                                                                                  \
        test(row);                                                                                                     \
    }                                                                                                                  \
    __attribute__((constructor)) static void register_##test(void)                                                     \
    {                                                                                                                  \
        for (size_t i = 0; i < COUNT(table); i++)                                                                      \
            add_test((struct test_case){ table[i].name, __LINE__, .run_row = run_##test, .row = &table[i] });          \
    }                                                                                                                  \
    static void test(const type *variable)

/* TEST_GROUP - fixtures of the whole program. */
#define TEST_GROUP(before, after)                                                                                      \
    __attribute__((constructor)) static void register_group(void)                                                      \
    {                                                                                                                  \
        set_group(before, after);                                                                                      \
    }

/* TEST_EVERY - fixtures of each test that has none of its own. */
#define TEST_EVERY(before, after)                                                                                      \
    __attribute__((constructor)) static void register_every(void)                                                      \
    {                                                                                                                  \
        set_every(before, after);                                                                                      \
    }

#endif
