/* Functions on strings against plain loops, and sorting: stable, with a context. */
#include "helper_assert.h"

#include "base/splitmix.h"
#include "base/strings.h"

static const char *find_plainly(const char *text, size_t length, const char *wanted, size_t n)
{
    for (size_t at = 0; at + n <= length; at++)
        if (!memcmp(text + at, wanted, n))
            return text + at;
    return NULL;
}

TEST(memmem_finds_the_first_place)
{
    uint64_t state = 1;
    for (int i = 0; i < 20000; i++) {
        char text[200], wanted[12];
        const size_t length = (size_t)(qn_splitmix(&state) % sizeof text),
                     n = (size_t)(qn_splitmix(&state) % sizeof wanted);
        const unsigned letters = 1 + (unsigned)i % 3; /* few letters: many candidates, where the hash takes over */
        for (size_t at = 0; at < sizeof text; at++)
            text[at] = (char)('a' + qn_splitmix(&state) % letters);
        for (size_t at = 0; at < sizeof wanted; at++)
            wanted[at] = (char)('a' + qn_splitmix(&state) % letters);
        assert_ptr_equal(qn_memmem(text, length, wanted, n), find_plainly(text, length, wanted, n));
    }
    assert_null(qn_memmem("", 0, "a", 1));
    assert_string_equal(qn_memmem("a\0b", 3, "\0b", 2) ? "found" : "", "found");
}

/* Quadratic time would take minutes. */
TEST(memmem_is_linear)
{
    enum { LENGTH = 1 << 22, WANTED = 1 << 20 };
    char *text = malloc(LENGTH), *wanted = malloc(WANTED);
    assert_true(text && wanted);
    memset(text, 'a', LENGTH);
    memset(wanted, 'a', WANTED);
    wanted[WANTED - 1] = 'b';
    assert_null(qn_memmem(text, LENGTH, wanted, WANTED));
    text[LENGTH - 1] = 'b';
    assert_ptr_equal(qn_memmem(text, LENGTH, wanted, WANTED), text + LENGTH - WANTED);
    free(text);
    free(wanted);
}

TEST(search)
{
    const char text[] = "abcabc";
    assert_ptr_equal(qn_memrchr(text, 'b', 6), text + 4);
    assert_ptr_equal(qn_memrchr(text, 'b', 4), text + 1);
    assert_null(qn_memrchr(text, 'x', 6));
    assert_null(qn_memrchr(text, 'a', 0));
    assert_string_equal(qn_strcasestr("one TWO three", "two"), "TWO three");
    assert_string_equal(qn_strcasestr("one", ""), "one");
    assert_null(qn_strcasestr("tw", "two"));
}

TEST(copies)
{
    char buffer[8] = "", parts[] = "a,,b", *rest = parts, *copy = qn_strndup("abc", 2), *whole = qn_strndup("abc", 9);
    assert_ptr_equal(qn_mempcpy(buffer, "xy", 2), buffer + 2);
    assert_string_equal(buffer, "xy");
    assert_string_equal(copy, "ab");
    assert_string_equal(whole, "abc");
    assert_string_equal(qn_strsep(&rest, ","), "a");
    assert_string_equal(qn_strsep(&rest, ","), "");
    assert_string_equal(qn_strsep(&rest, ","), "b");
    assert_null(qn_strsep(&rest, ","));
    qn_wipe(buffer, sizeof buffer);
    assert_memory_equal(buffer, "\0\0\0\0\0\0\0\0", 8);
    free(copy);
    free(whole);
}

TEST(lines)
{
    FILE *file = tmpfile();
    char *line = NULL;
    size_t capacity = 0;
    assert_non_null(file);
    for (int i = 0; i < 1000; i++)
        fputc('x', file);
    fputs("\n\n", file);
    fputc('\0', file);
    fputs("end", file);
    rewind(file);
    assert_int_equal(qn_getline(&line, &capacity, file), 1001);
    assert_int_equal(strlen(line), 1001);
    assert_int_equal(qn_getline(&line, &capacity, file), 1);
    assert_int_equal(qn_getline(&line, &capacity, file), 4);
    assert_memory_equal(line, "\0end", 5);
    assert_int_equal(qn_getline(&line, &capacity, file), -1);
    free(line);
    fclose(file);
}

struct element {
    int key, place;
};

static int compare(const void *a, const void *b, void *context)
{
    const struct element *x = a, *y = b;
    *(size_t *)context += 1;
    return (x->key > y->key) - (x->key < y->key);
}

TEST(sort_is_stable)
{
    static const size_t sizes[] = { 0, 1, 2, 7, 8, 9, 17, 100, 5000 };
    uint64_t state = 3;
    for (size_t s = 0; s < COUNT(sizes); s++) {
        const size_t n = sizes[s];
        struct element *all = calloc(n + 1, sizeof *all);
        size_t n_compared = 0;
        assert_non_null(all);
        for (size_t i = 0; i < n; i++)
            all[i] = (struct element){ (int)(qn_splitmix(&state) % (n / 3 + 1)), (int)i };
        qn_sort(all, n, sizeof *all, compare, &n_compared);
        for (size_t i = 1; i < n; i++)
            assert_true(all[i - 1].key < all[i].key ||
                        (all[i - 1].key == all[i].key && all[i - 1].place < all[i].place));
        assert_true(n_compared <= 20 * n); /* n log n */
        free(all);
    }
}
