/* Files by their paths: identity, descriptions, locks, folders, and names with characters beyond ASCII. */
#include "helper_assert.h"

#include "base/file.h"

#include <errno.h>
#include <unistd.h>

/* Names of a fresh folder. */
static char folder[300], file[400], other[400];

static void make_folder(void)
{
    char name[256];
    snprintf(name, sizeof name, "%s/quern-file-XXXXXX", qn_file_temporary_folder());
    const int fd = qn_file_make_temporary(name);
    assert_true(fd >= 0);
    close(fd);
    snprintf(folder, sizeof folder, "%s.d", name);
    assert_true(qn_file_remove(name));
    assert_true(qn_folder_make(folder, 0700));
    snprintf(file, sizeof file, "%s/größe 模型.txt", folder);
    snprintf(other, sizeof other, "%s/other", folder);
}

static void write_text(const char *path, const char *mode, const char *text)
{
    FILE *stream = qn_file_stream(path, mode);
    assert_non_null(stream);
    fputs(text, stream);
    assert_int_equal(fclose(stream), 0);
}

TEST(identity)
{
    qn_file_info a, b;
    make_folder();
    write_text(file, "w", "one\r\ntwo\n");
    assert_true(qn_file_describe(file, &a));
    assert_int_equal(a.kind, QN_FILE_REGULAR);
    assert_int_equal(a.size, 9); /* no translation */
    const int fd = qn_file_open_read(file);
    assert_true(fd >= 0 && qn_file_describe_fd(fd, &b));
    assert_true(qn_file_identity_equal(&a.identity, &b.identity));
    write_text(other, "w", "one\r\ntwo\n");
    assert_true(qn_file_describe(other, &b));
    assert_false(qn_file_id_equal(a.identity.id, b.identity.id));
    write_text(file, "a", "more");
    assert_true(qn_file_describe_fd(fd, &b));
    assert_true(qn_file_id_equal(a.identity.id, b.identity.id));
    assert_false(qn_file_identity_equal(&a.identity, &b.identity));
    char bytes[8] = "";
    assert_int_equal(qn_file_read_at(fd, bytes, 4, 9), 4);
    assert_string_equal(bytes, "more");
    assert_int_equal(qn_file_read_at(fd, bytes, 4, 13), 0);
    close(fd);
    assert_true(qn_file_describe(folder, &a) && a.kind == QN_FILE_FOLDER);
    assert_true(qn_file_remove(file) && qn_file_remove(other));
    assert_false(qn_file_describe(file, &a));
    assert_int_equal(errno, ENOENT);
    rmdir(folder);
}

TEST(locks_and_appends)
{
    make_folder();
    const int first = qn_file_open_append(file, 0600), second = qn_file_open_append(file, 0600);
    assert_true(first >= 0 && second >= 0);
    assert_true(qn_file_lock(first));
    assert_false(qn_file_lock(second));
    assert_int_equal(write(first, "ab", 2), 2);
    assert_int_equal(write(second, "cd", 2), 2);
    char bytes[8] = "";
    assert_int_equal(qn_file_read_at(first, bytes, sizeof bytes, 0), 4);
    assert_string_equal(bytes, "abcd");
    assert_true(qn_file_truncate(first, 1));
    assert_int_equal(qn_file_read_at(second, bytes, sizeof bytes, 0), 1);
    close(first);
    assert_true(qn_file_lock(second));
    close(second);
    assert_true(qn_file_remove(file));
    rmdir(folder);
}

TEST(names)
{
    size_t n = 0;
    bool is_found = false;
    make_folder();
    write_text(file, "w", "");
    qn_folder *names = qn_folder_open(folder);
    assert_non_null(names);
    for (const char *name; (name = qn_folder_next(names));) {
        n++;
        is_found = is_found || strcmp(name, "größe 模型.txt") == 0;
    }
    qn_folder_close(names);
    assert_int_equal(n, 3);
    assert_true(is_found);
    assert_string_equal(qn_file_name(file), "größe 模型.txt");
    assert_string_equal(qn_file_name("plain"), "plain");
    assert_string_equal(qn_file_name("folder/"), "");
    assert_true(qn_file_is_absolute(file));
    assert_false(qn_file_is_absolute("folder/file"));
    assert_false(qn_file_is_absolute(""));
    char *real = qn_file_real_path(file);
    assert_non_null(real);
    assert_string_equal(qn_file_name(real), "größe 模型.txt");
    free(real);
    assert_true(qn_folder_make(folder, 0700)); /* is there */
    assert_null(qn_folder_open(other));
    assert_true(qn_file_exists(file) && qn_file_is_readable(file) && !qn_file_exists(other));
    assert_true(qn_file_open_read(other) < 0 && errno == ENOENT);
    assert_true(qn_file_remove(file));
    rmdir(folder);
}
