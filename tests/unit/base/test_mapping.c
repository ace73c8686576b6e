/* Files that change while they are mapped: a read behind the end of one that was cut gives zeros and the mapping is
 * lost, on any thread and in no other mapping; keys of a GGUF file are a copy; and a file that is not the one that was
 * opened is noticed. */
#include "helper_assert.h"
#include "helper_files.h"
#include "helper_folder.h"

#include "base/mapping.h"
#include "base/team.h"
#include "gguf/gguf.h"
#include "gguf/safetensors.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <stdatomic.h>
#include <unistd.h>
#include <xxhash.h>

enum { PAGE = 4096, PAGES = 64, MAPPINGS = 5 };

static volatile sig_atomic_t n_signals;

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    (void)context;
    n_signals++;
    if (!qn_mapping_replace(info->si_addr))
        signal(number, SIG_DFL);
}

/* In each test: cmocka has handlers of its own around them. */
static void catch_bus_errors(void)
{
    const struct sigaction action = { .sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO };
    assert_int_equal(sigaction(SIGBUS, &action, NULL), 0);
}

/* A file of PAGES pages, each filled with its number from 1. */
static void write_pages(void)
{
    uint8_t page[PAGE];
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (int i = 1; i <= PAGES; i++) {
        memset(page, i, sizeof page);
        assert_int_equal(fwrite(page, sizeof page, 1, file), 1);
    }
    assert_int_equal(fclose(file), 0);
}

static qn_mapping *map_pages(void)
{
    qn_mapping *mapping;
    const int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_ok(qn_mapping_create(path, fd, PAGES * PAGE, &mapping));
    close(fd);
    return mapping;
}

static unsigned sum_of_page(const qn_mapping *mapping, int page)
{
    unsigned sum = 0;
    for (size_t i = 0; i < PAGE; i++)
        sum += ((const volatile uint8_t *)qn_mapping_data(mapping))[(size_t)page * PAGE + i];
    return sum;
}

TEST(test_cut)
{
    catch_bus_errors();
    write_pages();
    qn_mapping *whole[MAPPINGS], *cut = NULL;
    for (size_t i = 0; i < MAPPINGS; i++)
        whole[i] = map_pages();
    unlink(path);
    write_pages();
    cut = map_pages();
    n_signals = 0;
    assert_int_equal(truncate(path, 10 * PAGE), 0);
    assert_int_equal(sum_of_page(cut, 9), 10 * PAGE);
    assert_false(qn_mapping_is_lost(cut));
    for (int page = 10; page < PAGES; page++)
        assert_int_equal(sum_of_page(cut, page), 0);
    assert_true(qn_mapping_is_lost(cut));
    assert_int_equal(n_signals, 1); /* the rest is replaced at once */
    assert_int_equal(sum_of_page(cut, 9), 10 * PAGE);
    for (size_t i = 0; i < MAPPINGS; i++) {
        label("mapping %zu", i);
        assert_int_equal(sum_of_page(whole[i], 20), 21 * PAGE);
        assert_false(qn_mapping_is_lost(whole[i]));
        qn_mapping_free(whole[i]);
    }
    qn_mapping_free(cut);
    unlink(path);
    write_pages(); /* entries are used again */
    cut = map_pages();
    assert_false(qn_mapping_is_lost(cut));
    assert_int_equal(sum_of_page(cut, 63), 64 * PAGE);
    qn_mapping_free(cut);
    assert_false(qn_mapping_replace(path));
    assert_false(qn_mapping_replace(NULL));
}

struct reading {
    const qn_mapping *mapping;
    unsigned sums[8];
    atomic_int n_reading;
};

/* A piece waits until all are begun, so that each thread does one. */
static void read_last(void *context, size_t begin, size_t end, int thread)
{
    struct reading *r = context;
    assert_int_equal(end, begin + 1);
    atomic_fetch_add(&r->n_reading, 1);
    while (atomic_load(&r->n_reading) % 8)
        usleep(100);
    r->sums[thread] = sum_of_page(r->mapping, PAGES - 1 - thread);
}

/* Every thread of a team, which block other signals. */
TEST(test_threads)
{
    qn_team *team;
    struct reading r = { 0 };
    catch_bus_errors();
    write_pages();
    r.mapping = map_pages();
    assert_ok(qn_team_create(8, &team));
    qn_team_divide(team, 8, 1, read_last, &r);
    for (int i = 0; i < 8; i++)
        assert_int_equal(r.sums[i], (PAGES - (unsigned)i) * PAGE);
    assert_int_equal(truncate(path, 0), 0);
    qn_team_divide(team, 8, 1, read_last, &r);
    for (int i = 0; i < 8; i++)
        assert_int_equal(r.sums[i], 0);
    assert_true(qn_mapping_is_lost(r.mapping));
    qn_team_free(team);
    qn_mapping_free((qn_mapping *)(uintptr_t)r.mapping);
}

static void copy_model(void)
{
    char command[512];
    unlink(path);
    snprintf(command, sizeof command, "cp '%s' '%s'", QN_SOURCE_DIR "/tests/golden/parrot.gguf", path);
    assert_int_equal(system(command), 0);
}

/* Of all keys, values and names. */
static uint64_t hash_of_header(const qn_gguf *file)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < qn_gguf_n_kv(file); i++) {
        const qn_gguf_kv *kv = qn_gguf_kv_at(file, i);
        hash = XXH3_64bits_withSeed(kv->key.data, kv->key.length, hash);
        hash = XXH3_64bits_withSeed(kv->data, kv->bytes, hash);
    }
    for (size_t i = 0; i < qn_gguf_n_tensors(file); i++) {
        const qn_gguf_tensor *t = qn_gguf_tensor_at(file, i);
        hash = XXH3_64bits_withSeed(t->name.data, t->name.length, hash);
    }
    return hash;
}

TEST(test_header_is_a_copy)
{
    static const char noise[PAGE] = "noise";
    qn_gguf *file;
    copy_model();
    assert_ok(qn_gguf_open(path, &file));
    const uint64_t hash = hash_of_header(file);
    const int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    for (off_t at = 0; at < 8 * PAGE; at += PAGE)
        assert_int_equal(pwrite(fd, noise, sizeof noise, at), PAGE);
    assert_true(hash_of_header(file) == hash);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_true(hash_of_header(file) == hash);
    close(fd);
    assert_fails(qn_gguf_check_unchanged(file), QN_ERR_IO, path);
    qn_gguf_close(file);
}

TEST(test_changes)
{
    qn_gguf *file;
    char other[80];
    struct stat st;
    snprintf(other, sizeof other, "%s.other", path);
    for (int change = 0; change < 4; change++) {
        label("change %d", change);
        copy_model();
        assert_ok(qn_gguf_open(path, &file));
        assert_ok(qn_gguf_check_unchanged(file));
        assert_int_equal(stat(path, &st), 0);
        if (change == 0) {
            assert_int_equal(truncate(path, st.st_size - 1), 0);
        } else if (change == 1) { /* overwritten in place */
            assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[2]){ { 0, UTIME_OMIT }, { 1, 2 } }, 0), 0);
        } else if (change == 2) {
            assert_int_equal(rename(path, other), 0);
        } else {
            assert_int_equal(rename(path, other), 0);
            copy_model();
        }
        assert_fails(qn_gguf_check_unchanged(file), QN_ERR_IO, path);
        assert_ok(qn_gguf_check_whole(file)); /* nothing was read that is not there */
        qn_gguf_close(file);
        unlink(other);
    }
}

/* A key that takes most of a large file is not read into memory. */
TEST(test_large_header)
{
    static const uint64_t header[] = { 0x3ull << 32 | 0x46554747, 0, 1, 1ull << 32 /* the key's length */ };
    qn_gguf *file;
    write_file(path, header, sizeof header);
    assert_int_equal(truncate(path, 1ll << 33), 0);
    assert_fails(qn_gguf_open(path, &file), QN_ERR_UNSUPPORTED, "256 MiB");
}

TEST(test_safetensors)
{
    static const char text[] =
        "\x40\0\0\0\0\0\0\0{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}}      12345678";
    qn_safetensors *file;
    write_file(path, text, 8 + 0x40 + 8);
    assert_ok(qn_safetensors_open(path, &file));
    assert_ok(qn_safetensors_check_unchanged(file));
    assert_int_equal(truncate(path, 8 + 0x40 + 4), 0);
    assert_fails(qn_safetensors_check_unchanged(file), QN_ERR_IO, path);
    qn_safetensors_close(file);
}

TEST_GROUP(make_folder, remove_folder)
