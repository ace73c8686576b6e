/* Files that replace others: who may read them, from the first byte on, under every umask. */
#include "helper_assert.h"

#include "base/atomic_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/quern-atomic.XXXXXX", path[64];

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/file", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static unsigned mode_of(const char *name)
{
    struct stat st;
    assert_int_equal(stat(name, &st), 0);
    return st.st_mode & 07777;
}

/* The mode of the temporary file before it has contents, and of the file. */
static void check(qn_file_access access, mode_t mask, int existing, unsigned expected)
{
    label("%s, umask %03o, replacing %o", access == QN_FILE_PRIVATE ? "private" : "shared", (unsigned)mask, (unsigned)existing);
    unlink(path);
    if (existing >= 0) {
        const int fd = open(path, O_WRONLY | O_CREAT, 0600);
        assert_true(fd >= 0);
        assert_int_equal(fchmod(fd, (mode_t)existing), 0);
        close(fd);
    }
    const mode_t before = umask(mask);
    qn_atomic_file file;
    assert_ok(qn_atomic_file_create(&file, path, access));
    umask(before);
    assert_int_equal(mode_of(file.temporary), expected);
    assert_true(fcntl(file.fd, F_GETFD) & FD_CLOEXEC);
    assert_ok(qn_atomic_file_write(&file, "text", 4));
    assert_ok(qn_atomic_file_commit(&file));
    qn_atomic_file_free(&file);
    assert_int_equal(mode_of(path), expected);
}

static void test_modes(void **state)
{
    (void)state;
    static const mode_t masks[] = { 0, 022, 077 };
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        check(QN_FILE_PRIVATE, masks[i], -1, 0600);
        check(QN_FILE_PRIVATE, masks[i], 0644, 0600);
        check(QN_FILE_PRIVATE, masks[i], 0666, 0600);
        check(QN_FILE_SHARED, masks[i], -1, 0666 & ~masks[i]);
        check(QN_FILE_SHARED, masks[i], 0640, 0640);
        check(QN_FILE_SHARED, masks[i], 0600, 0600);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_modes) };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
