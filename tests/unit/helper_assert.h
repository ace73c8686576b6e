/* Assertions of the unit tests: those of cmocka, which also print the failed case of a loop, and assertions on
 * statuses and error texts. Every unit test includes this header, instead of cmocka.h and of the C headers below;
 * helper_test.h registers the tests. */
#ifndef QN_TESTS_HELPER_ASSERT_H
#define QN_TESTS_HELPER_ASSERT_H

#include "helper_test.h"
#include "quern/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* assert_ok - fails unless the status is QN_OK, with the expression, the name of the status and the error text. */
#define assert_ok(status) labelled_ok(status, #status, __FILE__, __LINE__)

/* assert_fails - fails unless the call's status is this one, and its error text contains `part`. */
#define assert_fails(call, status, part) labelled_failure(call, status, part, #call, __FILE__, __LINE__)

/* assert_text - fails unless the error text contains `part`. */
#define assert_text(part) labelled_text(part, __FILE__, __LINE__)

/* assert_contains - fails unless `part` is in the text. */
#define assert_contains(text, part) labelled_part(text, part, __FILE__, __LINE__)

/* label - names the case under test, with printf arguments, until the end of the enclosing block: label("%zu
 * threads", n). Labels of nested blocks form one line, which a failed assertion of this thread prints first. No
 * label may be current around skip(). */
#define label(...) LABEL_OF_LINE(__LINE__, __VA_ARGS__)
#define LABEL_OF_LINE(line, ...) LABEL_VARIABLE(line, __VA_ARGS__)
#define LABEL_VARIABLE(line, ...)                                                                                      \
    __attribute__((cleanup(label_end), unused)) const size_t label_##line = label_begin(__VA_ARGS__)

size_t label_begin(const char *format, ...) QN_PRINTF(1, 2);
void label_end(const size_t *length);

/* label_failed - prints and clears the current label: after a failed assertion the ends of blocks are not reached. */
void label_failed(void);

void labelled_ok(qn_status status, const char *expression, const char *file, int line);
void labelled_failure(qn_status found, qn_status expected, const char *part, const char *expression, const char *file,
                      int line);
void labelled_text(const char *part, const char *file, int line);
void labelled_part(const char *text, const char *part, const char *file, int line);
void fail_with(const char *file, int line, const char *format, ...) QN_PRINTF(3, 4);

/* COUNT - the number of elements of an array. */
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- cmocka's assertions with labels ---- */

static inline void labelled_true(LargestIntegralType value, const char *expression, const char *file, int line)
{
    if (!value)
        label_failed();
    _assert_true(value, expression, file, line);
}

static inline void labelled_equal(LargestIntegralType a, LargestIntegralType b, const char *file, int line)
{
    if (a != b)
        label_failed();
    _assert_int_equal(a, b, file, line);
}

static inline void labelled_not_equal(LargestIntegralType a, LargestIntegralType b, const char *file, int line)
{
    if (a == b)
        label_failed();
    _assert_int_not_equal(a, b, file, line);
}

static inline void labelled_in_range(LargestIntegralType value, LargestIntegralType low, LargestIntegralType high,
                                     const char *file, int line)
{
    if (value < low || value > high)
        label_failed();
    _assert_in_range(value, low, high, file, line);
}

static inline void labelled_string(const char *a, const char *b, const char *file, int line)
{
    if (strcmp(a, b) != 0)
        label_failed();
    _assert_string_equal(a, b, file, line);
}

static inline void labelled_other_string(const char *a, const char *b, const char *file, int line)
{
    if (strcmp(a, b) == 0)
        label_failed();
    _assert_string_not_equal(a, b, file, line);
}

static inline void labelled_memory(const void *a, const void *b, size_t size, const char *file, int line)
{
    if (memcmp(a, b, size) != 0)
        label_failed();
    _assert_memory_equal(a, b, size, file, line);
}

static inline void labelled_other_memory(const void *a, const void *b, size_t size, const char *file, int line)
{
    if (memcmp(a, b, size) == 0)
        label_failed();
    _assert_memory_not_equal(a, b, size, file, line);
}

#undef assert_true
#undef assert_false
#undef assert_non_null
#undef assert_null
#undef assert_int_equal
#undef assert_int_not_equal
#undef assert_ptr_equal
#undef assert_in_range
#undef assert_string_equal
#undef assert_string_not_equal
#undef assert_memory_equal
#undef assert_memory_not_equal
#undef fail_msg

#define assert_true(c) labelled_true(cast_to_largest_integral_type(c), #c, __FILE__, __LINE__)
#define assert_false(c) labelled_true(!cast_to_largest_integral_type(c), "!(" #c ")", __FILE__, __LINE__)
#define assert_non_null(p) labelled_true((p) != NULL, #p " != NULL", __FILE__, __LINE__)
#define assert_null(p) labelled_true((p) == NULL, #p " == NULL", __FILE__, __LINE__)
#define assert_int_equal(a, b)                                                                                         \
    labelled_equal(cast_to_largest_integral_type(a), cast_to_largest_integral_type(b), __FILE__, __LINE__)
#define assert_int_not_equal(a, b)                                                                                     \
    labelled_not_equal(cast_to_largest_integral_type(a), cast_to_largest_integral_type(b), __FILE__, __LINE__)
#define assert_ptr_equal(a, b)                                                                                         \
    labelled_equal(cast_ptr_to_largest_integral_type(a), cast_ptr_to_largest_integral_type(b), __FILE__, __LINE__)
#define assert_in_range(value, low, high)                                                                              \
    labelled_in_range(cast_to_largest_integral_type(value), cast_to_largest_integral_type(low),                        \
                      cast_to_largest_integral_type(high), __FILE__, __LINE__)
#define assert_string_equal(a, b) labelled_string(a, b, __FILE__, __LINE__)
#define assert_string_not_equal(a, b) labelled_other_string(a, b, __FILE__, __LINE__)
#define assert_memory_equal(a, b, size) labelled_memory(a, b, size, __FILE__, __LINE__)
#define assert_memory_not_equal(a, b, size) labelled_other_memory(a, b, size, __FILE__, __LINE__)
#define fail_msg(...) fail_with(__FILE__, __LINE__, __VA_ARGS__)

#endif
