/* The kernel cache under a folder that others share: code that another user owns or may write to is not loaded, and
 * says so. Owners are changed as root only; modes and links are tested by everybody. */
#include "helper_cuda.h"
#include "helper_files.h"

#include "cuda/runtime/cubin_key.h"

#include <sys/stat.h>
#include <unistd.h>

enum { NOBODY = 65534 };

static const qn_code_key key = { { 1, 2, 3 } };
static char work[64], folder[96], path[160];

static int setup(void)
{
    char name[QN_CODE_NAME_MAX];
    snprintf(work, sizeof work, "/tmp/quern-trust.XXXXXX");
    assert_non_null(mkdtemp(work));
    assert_int_equal(chmod(work, 01777), 0); /* as /tmp */
    snprintf(folder, sizeof folder, "%s/quern", work);
    qn_code_file_name(&qn_cubin_files, &key, name);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const mode_t mask = umask(0);
    assert_ok(qn_code_file_write(&qn_cubin_files, folder, &key, "test", "code", 4));
    umask(mask);
    return 0;
}

static int teardown(void)
{
    return remove_tree(work);
}

static qn_status read_it(bool *found)
{
    void *data;
    size_t bytes;
    char compiler[QN_COMPILER_MAX];
    const qn_status status = qn_code_file_read(&qn_cubin_files, folder, &key, &data, &bytes, compiler);
    *found = data != NULL;
    free(data);
    return status;
}

static void expect_trusted(void)
{
    bool found;
    assert_ok(read_it(&found));
    assert_true(found);
}

static void expect_refused(qn_status expected, const char *why)
{
    bool found;
    assert_int_equal(read_it(&found), expected);
    assert_false(found);
    assert_text(why);
}

static unsigned mode_of(const char *name)
{
    struct stat st;
    assert_int_equal(stat(name, &st), 0);
    return st.st_mode & 0777;
}

TEST(test_modes)
{
    assert_int_equal(mode_of(folder), 0700);
    assert_int_equal(mode_of(path), 0600);
    expect_trusted();
    assert_int_equal(chmod(path, 0644), 0); /* others may read it */
    assert_int_equal(chmod(folder, 0755), 0);
    expect_trusted();
    static const mode_t modes[] = { 0620, 0602, 0666 };
    for (size_t i = 0; i < COUNT(modes); i++) {
        label("file of mode %03o", (unsigned)modes[i]);
        assert_int_equal(chmod(path, modes[i]), 0);
        expect_refused(QN_ERR_INVALID, "other users can write");
    }
    assert_ok(qn_code_file_write(&qn_cubin_files, folder, &key, "test", "code", 4)); /* compiled again: the file is
                                                                                        replaced */
    expect_trusted();
    assert_int_equal(chmod(folder, 01777), 0);
    expect_refused(QN_ERR_INVALID, folder);
    assert_text("has mode 777");
    assert_int_equal(qn_code_file_write(&qn_cubin_files, folder, &key, "test", "code", 4), QN_ERR_INVALID);
}

TEST(test_owners)
{
    if (geteuid() != 0)
        skip();
    assert_int_equal(chown(path, NOBODY, NOBODY), 0);
    expect_refused(QN_ERR_INVALID, "belongs to user 65534, expected 0 or root");
    assert_int_equal(chown(path, 0, 0), 0);
    assert_int_equal(chown(folder, NOBODY, NOBODY), 0);
    expect_refused(QN_ERR_INVALID, "belongs to user 65534");
    /* What root has filled is trusted by others. */
    assert_int_equal(chown(folder, 0, 0), 0);
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(seteuid(NOBODY), 0);
    expect_trusted();
    assert_int_equal(seteuid(0), 0);
}

TEST(test_links)
{
    char moved[128];
    snprintf(moved, sizeof moved, "%s/elsewhere", work);
    assert_int_equal(rename(path, moved), 0);
    assert_int_equal(symlink(moved, path), 0);
    expect_refused(QN_ERR_FORMAT, "is a symbolic link");
    assert_int_equal(rename(moved, path), 0);
    expect_trusted();
    assert_int_equal(rename(folder, moved), 0); /* the cache on another disk */
    assert_int_equal(symlink(moved, folder), 0);
    expect_trusted();
    if (geteuid() == 0) {
        assert_int_equal(lchown(folder, NOBODY, NOBODY), 0);
        expect_refused(QN_ERR_INVALID, "belongs to user 65534");
    }
}

static void on_log(void *user, const char *line)
{
    char *log = user;
    snprintf(log, 512, "%s", line);
}

/* A device says once why its cache is not used, and quern kernels can print it. */
TEST(test_reason)
{
    char log[512] = "";
    const qn_cuda_tools tools = { .cache_folder = folder, .nvcc = "", .nvrtc = "" };
    const qn_cuda_params params = { .driver = fake_driver(), .tools = &tools, .on_log = on_log, .user = log };
    qn_cuda *device;
    assert_int_equal(chmod(folder, 0777), 0);
    assert_ok(qn_cuda_open(&params, &device));
    assert_null(qn_cuda_cache_folder(device));
    assert_contains(qn_cuda_no_cache(device), "other users can write");
    assert_contains(log, "other users can write");
    qn_cuda_close(device);
    assert_int_equal(chmod(folder, 0700), 0);
    assert_ok(qn_cuda_open(&params, &device));
    assert_string_equal(qn_cuda_cache_folder(device), folder);
    assert_string_equal(qn_cuda_no_cache(device), "");
    qn_cuda_close(device);
    fake_expect_empty();
}

TEST_EVERY(setup, teardown)
