/* The pipeline cache on disk: it is written when a device is closed; a file that is damaged, or in a folder that others
 * may write to, is not used. */
#include "helper_folder.h"
#include "vulkan/helper_vulkan.h"

#include "base/append.h"
#include "gpu/code_file.h"
#include "vulkan/runtime/runtime.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_FILE = 4096 };

struct file {
    char path[600];
    size_t bytes;
    uint8_t data[MAX_FILE];
};

static void cache_folder(char *to, size_t size)
{
    assert_true(qn_print(to, size, "%s/quern", folder));
}

/* Reads the only file of the cache; returns false if there is none. */
static bool read_cache(struct file *f)
{
    char name[300];
    size_t n = 0;
    cache_folder(name, sizeof name);
    DIR *dir = opendir(name);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (strstr(entry->d_name, ".pipelines")) {
            snprintf(f->path, sizeof f->path, "%s/%s", name, entry->d_name);
            n++;
        }
    if (dir)
        closedir(dir);
    assert_true(n <= 1);
    if (!n)
        return false;
    FILE *file = fopen(f->path, "rb");
    assert_non_null(file);
    f->bytes = fread(f->data, 1, sizeof f->data, file);
    fclose(file);
    return true;
}

static void write_cache(const struct file *f)
{
    FILE *file = fopen(f->path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(f->data, 1, f->bytes, file), f->bytes);
    fclose(file);
}

static void open_and_close(void)
{
    qn_vk *vk;
    assert_ok(qn_vk_open(0, &vk));
    qn_vk_close(vk);
}

static int begin(void)
{
    return make_folder() || setenv("XDG_CACHE_HOME", folder, 1) || setenv("MESA_SHADER_CACHE_DISABLE", "true", 1);
}

static int end(void)
{
    static struct file f;
    char name[300];
    cache_folder(name, sizeof name);
    if (read_cache(&f))
        unlink(f.path);
    rmdir(name);
    return remove_folder();
}

TEST(is_written_and_replaced_if_damaged)
{
    static struct file first, second;
    assert_false(read_cache(&first));
    open_and_close();
    assert_true(read_cache(&first));
    for (size_t at = 0; at < first.bytes; at += 13) {
        second = first;
        second.data[at] ^= 1;
        write_cache(&second);
        open_and_close();
        assert_true(read_cache(&second));
        label("byte %zu", at);
        assert_int_equal(second.bytes, first.bytes);
        assert_memory_equal(second.data, first.data, first.bytes);
    }
    second = first;
    second.bytes /= 2;
    write_cache(&second);
    open_and_close();
    assert_true(read_cache(&second));
    assert_int_equal(second.bytes, first.bytes);
}

TEST(is_not_used_if_others_may_write)
{
    static struct file f;
    char name[300];
    qn_vk *vk;
    cache_folder(name, sizeof name);
    assert_int_equal(mkdir(name, 0700), 0);
    assert_int_equal(chmod(name, 0777), 0);
    assert_ok(qn_vk_open(0, &vk));
    assert_int_equal(qn_fail(QN_ERR_IO, "an error before"), QN_ERR_IO);
    qn_vk_close(vk);
    assert_string_equal(qn_error_text(), "an error before");
    assert_false(read_cache(&f));
}

TEST_EVERY(begin, end)

int main(void)
{
    return run_tests_on_vulkan();
}
