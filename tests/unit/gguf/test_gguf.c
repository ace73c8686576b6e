/* The GGUF reader and writer: round trips and look-ups. Files are built byte by byte, so that the reader is not tested
 * only with quern's writer. test_gguf_hostile.c has the invalid files. */
#include "helper_image.h"
#include "helper_time.h"
#include "helper_files.h"

#include <dirent.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

/* A copy of the image, and the file that it is. */
static uint8_t *copy;
static qn_gguf *file;

static void open_written(void)
{
    assert_ok(open_image(&image, &file, &copy));
}

static void close_written(void)
{
    qn_gguf_close(file);
    free(copy);
}

/* ---- Valid files ---- */

/* A file with one value of each type. */
static void rich_image(uint32_t version)
{
    put_header(version, 3, 15);
    put_key("u8", QN_GGUF_U8), put("\xff", 1);
    put_key("i8", QN_GGUF_I8), put("\xff", 1);
    put_key("u16", QN_GGUF_U16), put("\xff\xff", 2);
    put_key("i16", QN_GGUF_I16), put("\xfe\xff", 2);
    put_key("u32", QN_GGUF_U32), put32(UINT32_MAX);
    put_key("i32", QN_GGUF_I32), put32((uint32_t)-5);
    const float pi = 3.25f, nan = NAN;
    put_key("f32", QN_GGUF_F32), put(&pi, 4);
    put_key("nan", QN_GGUF_F32), put(&nan, 4);
    put_key("yes", QN_GGUF_BOOL), put("\1", 1);
    put_key("perhaps", QN_GGUF_BOOL), put("\2", 1);
    put_key("text", QN_GGUF_STRING), put_text("some text");
    put_key("u64", QN_GGUF_U64), put64(UINT64_MAX);
    const double large = 1e300;
    put_key("f64", QN_GGUF_F64), put(&large, 8);
    put_key("words", QN_GGUF_ARRAY), put32(QN_GGUF_STRING), put64(3);
    put_text("a"), put_text(""), put_text("ccc");
    put_key("numbers", QN_GGUF_ARRAY), put32(QN_GGUF_I16), put64(2), put("\1\0\xff\xff", 4);
    /* The headers are not in the order of the data. */
    put_tensor("second", QN_TYPE_F32, 64, 2, 3, 5, 1, 1);
    put_tensor("first", QN_TYPE_F16, 0, 1, 32, 1, 1, 1);
    put_tensor("third", QN_TYPE_Q8_0, 128, 4, 32, 2, 1, 2);
    put_data(32, 128 + 4 * 34); /* the last tensor is not padded, as by some writers */
}

TEST(valid_file)
{
    for (uint32_t version = 2; version <= 3; version++) {
        label("version %u", (unsigned)version);
        rich_image(version);
        open_written();
        assert_int_equal(qn_gguf_n_kv(file), 15);
        assert_int_equal(qn_gguf_n_tensors(file), 3);
        assert_int_equal(qn_gguf_alignment(file), 32);
        assert_int_equal(qn_gguf_file_size(file), image.size);
        assert_string_equal(qn_gguf_path(file), "image");
        assert_null(qn_gguf_q2_layout(file));
        assert_null(qn_gguf_find(file, "u"));
        assert_null(qn_gguf_kv_at(file, 15));
        assert_null(qn_gguf_tensor_at(file, 3));
        assert_true(qn_string_equals(qn_gguf_kv_at(file, 10)->key, "text"));

        const qn_gguf_tensor *t = qn_gguf_find_tensor(file, "third");
        assert_non_null(t);
        assert_ptr_equal(t, qn_gguf_tensor_at(file, 2));
        assert_int_equal(t->type, QN_TYPE_Q8_0);
        assert_int_equal(t->n_dims, 4);
        assert_int_equal(t->dims[0], 32);
        assert_int_equal(t->dims[3], 2);
        assert_int_equal(t->bytes, 4 * 34);
        assert_ptr_equal(t->data + t->bytes, copy + image.size);
        assert_int_equal(qn_gguf_find_tensor(file, "second")->dims[2], 1);
        assert_null(qn_gguf_find_tensor(file, "fourth"));
        qn_gguf_close(file);

        for (size_t cut = 0; cut < image.size; cut++) { /* no prefix of it is a valid file */
            label("%zu bytes", cut);
            const struct image part = { image.data, cut, cut };
            uint8_t *part_copy;
            assert_int_equal(open_image(&part, &file, &part_copy), QN_ERR_FORMAT);
            free(part_copy);
        }
        free(copy);
    }
}

TEST(look_ups)
{
    rich_image(3);
    open_written();
    uint32_t u = 77;
    float f = 77.0f;
    bool b = false;
    qn_string s = { 0 };
    assert_ok(qn_gguf_get_u32(file, "absent", false, &u));
    assert_int_equal(u, 77);
    assert_fails(qn_gguf_get_u32(file, "absent", true, &u), QN_ERR_FORMAT, "'absent' is missing");
    assert_ok(qn_gguf_get_u32(file, "u8", true, &u));
    assert_int_equal(u, 255);
    assert_ok(qn_gguf_get_u32(file, "u16", true, &u));
    assert_int_equal(u, 65535);
    assert_ok(qn_gguf_get_u32(file, "u32", true, &u));
    assert_int_equal(u, UINT32_MAX);
    static const char *const out_of_range[] = { "i8", "i16", "i32", "u64", "f32", "yes", "text", "words" };
    for (size_t i = 0; i < COUNT(out_of_range); i++) {
        assert_fails(qn_gguf_get_u32(file, out_of_range[i], false, &u), QN_ERR_FORMAT, out_of_range[i]);
    }
    assert_int_equal(u, UINT32_MAX);

    assert_ok(qn_gguf_get_f32(file, "f32", true, &f));
    assert_true(f == 3.25f);
    assert_int_equal(qn_gguf_get_f32(file, "nan", true, &f), QN_ERR_FORMAT);
    assert_int_equal(qn_gguf_get_f32(file, "f64", true, &f), QN_ERR_FORMAT);
    assert_int_equal(qn_gguf_get_f32(file, "u8", true, &f), QN_ERR_FORMAT);
    assert_true(f == 3.25f);

    assert_ok(qn_gguf_get_bool(file, "yes", true, &b));
    assert_true(b);
    assert_int_equal(qn_gguf_get_bool(file, "perhaps", true, &b), QN_ERR_FORMAT);
    assert_int_equal(qn_gguf_get_bool(file, "u8", true, &b), QN_ERR_FORMAT);

    assert_ok(qn_gguf_get_string(file, "text", true, &s));
    assert_true(qn_string_equals(s, "some text"));
    assert_false(qn_string_equals(s, "some tex"));
    assert_int_equal(qn_gguf_get_string(file, "words", true, &s), QN_ERR_FORMAT);

    qn_string *words;
    assert_ok(qn_gguf_array_strings(file, qn_gguf_find(file, "words"), &words));
    assert_true(qn_string_equals(words[0], "a") && words[1].length == 0 && qn_string_equals(words[2], "ccc"));
    free(words);
    assert_int_equal(qn_gguf_array_strings(file, qn_gguf_find(file, "numbers"), &words), QN_ERR_FORMAT);
    assert_null(words);

    int32_t i = 77;
    const qn_gguf_kv *numbers = qn_gguf_find(file, "numbers");
    assert_ok(qn_gguf_array_i32(file, numbers, 1, &i));
    assert_int_equal(i, -1);
    assert_ok(qn_gguf_array_f32(file, numbers, 1, &f));
    assert_true(f == -1.0f);
    assert_int_equal(qn_gguf_array_i32(file, numbers, 2, &i), QN_ERR_FORMAT);
    assert_int_equal(qn_gguf_array_i32(file, qn_gguf_find(file, "words"), 0, &i), QN_ERR_FORMAT);
    assert_int_equal(qn_gguf_array_f32(file, qn_gguf_find(file, "text"), 0, &f), QN_ERR_FORMAT);
    close_written();
}

TEST(array_elements_keep_their_range)
{
    put_header(3, 0, 3);
    put_key("u32", QN_GGUF_ARRAY), put32(QN_GGUF_U32), put64(2), put32(INT32_MAX), put32(1u << 31);
    const float floats[] = { 1.5f, INFINITY };
    put_key("f32", QN_GGUF_ARRAY), put32(QN_GGUF_F32), put64(2), put(floats, sizeof floats);
    put_key("i64", QN_GGUF_ARRAY), put32(QN_GGUF_I64), put64(1), put64(1ull << 40);
    open_written();
    int32_t i;
    float f;
    assert_ok(qn_gguf_array_i32(file, qn_gguf_find(file, "u32"), 0, &i));
    assert_int_equal(i, INT32_MAX);
    assert_int_equal(qn_gguf_array_i32(file, qn_gguf_find(file, "u32"), 1, &i), QN_ERR_FORMAT);
    assert_ok(qn_gguf_array_f32(file, qn_gguf_find(file, "f32"), 0, &f));
    assert_true(f == 1.5f);
    assert_int_equal(qn_gguf_array_f32(file, qn_gguf_find(file, "f32"), 1, &f), QN_ERR_FORMAT);
    assert_int_equal(qn_gguf_array_i32(file, qn_gguf_find(file, "f32"), 0, &i), QN_ERR_FORMAT);
    assert_int_equal(qn_gguf_array_i32(file, qn_gguf_find(file, "i64"), 0, &i), QN_ERR_FORMAT);
    assert_ok(qn_gguf_array_f32(file, qn_gguf_find(file, "i64"), 0, &f));
    assert_true(f == 0x1p40f);
    close_written();
}

TEST(wide_alignment)
{
    for (int wrong = 0; wrong < 2; wrong++) {
        put_header(3, 2, 1);
        put_key("general.alignment", QN_GGUF_U32), put32(128);
        put_tensor("a", QN_TYPE_F32, 0, 1, 3, 1, 1, 1);
        put_tensor("b", QN_TYPE_F32, wrong ? 32 : 128, 1, 3, 1, 1, 1);
        put_data(128, 140);
        assert_int_equal(open_image(&image, &file, &copy), wrong ? QN_ERR_FORMAT : QN_OK);
        if (!wrong) {
            assert_int_equal(qn_gguf_alignment(file), 128);
            assert_int_equal((qn_gguf_find_tensor(file, "a")->data - copy) % 128, 0);
        }
        close_written();
    }
}

/* The layouts of type 42 as other programs write them, determined from offsets. */
TEST(type_42_in_a_file)
{
    static const qn_type layouts[] = { QN_TYPE_Q2_0, QN_TYPE_PQ2_0, QN_TYPE_OX2_0 };
    for (size_t k = 0; k < 3; k++) {
        const qn_type_info *info = qn_type_find((uint32_t)layouts[k]);
        const size_t bytes = 128 * 20 / info->block_weights * info->block_bytes, padded = (bytes + 31) / 32 * 32;
        put_header(3, 3, 0);
        put_tensor("last", QN_TYPE_Q2_0, 32 + padded, 2, 256, 10, 1, 1);
        put_tensor("norm", QN_TYPE_F32, padded, 1, 8, 1, 1, 1);
        put_tensor("first", QN_TYPE_Q2_0, 0, 2, 128, 20, 1, 1);
        put_data(32, 2 * padded + 32);
        uint8_t *data = image.data + image.size - 2 * padded - 32;
        for (size_t i = 0; i < 2 * (bytes / info->block_bytes); i++) {
            uint8_t *block = data + (i < bytes / info->block_bytes ? 0 : 32 + padded) +
                             i % (bytes / info->block_bytes) * info->block_bytes;
            memset(block, 0x84, info->block_bytes); /* codes 0, 1, 0, 2; read as a scale they are negative */
            memcpy(layouts[k] == QN_TYPE_OX2_0 ? block + 32 : block, "\0\x3c", 2);
        }
        open_written();
        assert_int_equal(qn_gguf_find_tensor(file, "first")->type, layouts[k]);
        assert_int_equal(qn_gguf_find_tensor(file, "first")->bytes, bytes);
        assert_int_equal(qn_gguf_find_tensor(file, "last")->type, layouts[k]);
        assert_int_equal(qn_gguf_find_tensor(file, "last")->bytes, bytes);
        assert_non_null(qn_gguf_q2_layout(file));
        float weights[128];
        info->to_float(qn_gguf_find_tensor(file, "last")->data, 128 / info->block_weights, weights);
        assert_true(weights[0] == -1.0f && weights[1] == 0.0f && weights[2] == -1.0f && weights[3] == 1.0f);
        close_written();
    }
}

/* In error texts control characters of names are masked, and a name as long as the file is truncated. */
TEST(nasty_names)
{
    put_header(3, 1, 0);
    put_tensor("\033[2Jw\nx", 99, 0, 1, 1, 1, 1, 1);
    assert_int_equal(open_image(&image, &file, &copy), QN_ERR_UNSUPPORTED);
    assert_null(strpbrk(qn_error_text(), "\033\n"));
    free(copy);
    put_header(3, 0, 2);
    for (int i = 0; i < 2; i++) {
        put64(100000);
        for (int k = 0; k < 100000; k++)
            put("k", 1);
        put32(0);
        put("x", 1);
    }
    assert_fails(open_image(&image, &file, &copy), QN_ERR_FORMAT, "appears twice");
    free(copy);
    /* as a C string it would be another name */
    qn_string s = { NULL, 0 };
    put_header(3, 0, 1);
    put_key("general.name", QN_GGUF_STRING);
    put64(9);
    put("one\0other", 9);
    open_written();
    assert_fails(qn_gguf_get_string(file, "general.name", true, &s), QN_ERR_FORMAT,
                 "'general.name' is a string with a NUL character");
    close_written();
}

/* 300 000 keys and as many tensors: validation takes linear time, not 10^11 comparisons. */
TEST(many_names)
{
    enum { N_TENSORS = 300000 };
    char name[32];
    put_header(3, N_TENSORS, N_TENSORS);
    for (int i = 0; i < N_TENSORS; i++) {
        snprintf(name, sizeof name, "key.%d", i);
        put_key(name, QN_GGUF_U8), put("", 1);
    }
    for (int i = 0; i < N_TENSORS; i++) {
        snprintf(name, sizeof name, "tensor.%d", i);
        put_tensor(name, QN_TYPE_F32, (uint64_t)(N_TENSORS - 1 - i) * 32, 1, 1, 1, 1, 1);
    }
    put_data(32, (size_t)N_TENSORS * 32);
    const double begin = cpu_seconds();
    open_written();
    assert_true(cpu_seconds() - begin < 10);
    assert_non_null(qn_gguf_find(file, "key.299999"));
    assert_non_null(qn_gguf_find_tensor(file, "tensor.0"));
    close_written();
}

/* ---- Files on disk ---- */

static char folder[] = "/tmp/quern-test-gguf-XXXXXX";

static const char *in_folder(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int files_in_folder(void)
{
    DIR *d = opendir(folder);
    assert_non_null(d);
    int n = 0;
    for (const struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

static int make_folder(void)
{
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void)
{
    return rmdir(folder);
}

TEST(not_files)
{
    char path[512];
    snprintf(path, sizeof path, "%s", in_folder("empty"));
    write_text(path, "");
    assert_fails(qn_gguf_open(path, &file), QN_ERR_IO, "empty");
    unlink(path);
    assert_fails(qn_gguf_open(path, &file), QN_ERR_IO, "No such file");
    assert_fails(qn_gguf_open(folder, &file), QN_ERR_IO, "directory");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(qn_gguf_open(path, &file), QN_ERR_IO); /* returns, although the pipe has no writer */
    unlink(path);
    assert_int_equal(qn_gguf_open("/dev/null", &file), QN_ERR_IO);
    assert_null(file);
}

TEST(write_and_read)
{
    qn_gguf *source;
    rich_image(2);
    assert_ok(open_image(&image, &source, &copy));

    qn_gguf_writer *w;
    const char *path = in_folder("written.gguf");
    assert_ok(qn_gguf_writer_create(path, &w));
    assert_int_equal(access(path, F_OK), -1);
    assert_ok(qn_gguf_writer_add_string(w, "added.text", "hello"));
    assert_ok(qn_gguf_writer_add_u32(w, "added.u32", 123456));
    assert_ok(qn_gguf_writer_add_f32(w, "added.f32", -0.125f));
    for (size_t i = 0; i < qn_gguf_n_kv(source); i++)
        assert_ok(qn_gguf_writer_copy(w, qn_gguf_kv_at(source, i)));
    uint8_t bytes[1000];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 7);
    const uint64_t dims[] = { 25, 10 };
    assert_ok(qn_gguf_writer_add_tensor(w, (qn_string){ "odd", 3 }, QN_TYPE_F16, 1, dims, 50));
    assert_ok(qn_gguf_writer_add_tensor(w, (qn_string){ "matrix", 6 }, QN_TYPE_F32, 2, dims, 1000));
    assert_int_equal(qn_gguf_writer_data(w, bytes, 1), QN_ERR_INVALID); /* before qn_gguf_writer_begin_data */
    assert_ok(qn_gguf_writer_begin_data(w));
    assert_int_equal(qn_gguf_writer_add_u32(w, "late", 1), QN_ERR_INVALID);
    assert_int_equal(qn_gguf_writer_set_alignment(w, source), QN_ERR_INVALID);
    assert_ok(qn_gguf_writer_data(w, bytes, 20));
    assert_ok(qn_gguf_writer_data(w, bytes + 20, 30));
    assert_ok(qn_gguf_writer_data(w, bytes, 999));
    assert_int_equal(qn_gguf_writer_finish(w), QN_ERR_INVALID); /* a byte is missing */
    assert_ok(qn_gguf_writer_data(w, bytes + 999, 1));
    assert_int_equal(qn_gguf_writer_data(w, bytes, 1), QN_ERR_INVALID);
    assert_int_equal(access(path, F_OK), -1);
    assert_ok(qn_gguf_writer_finish(w));
    qn_gguf_writer_free(w);
    assert_int_equal(files_in_folder(), 1);

    assert_ok(qn_gguf_open(path, &file));
    assert_int_equal(qn_gguf_file_size(file) % 32, 0); /* the last tensor is padded: some readers require it */
    assert_int_equal(qn_gguf_n_kv(file), 18);
    for (size_t i = 0; i < qn_gguf_n_kv(source); i++) {
        const qn_gguf_kv *a = qn_gguf_kv_at(source, i), *b = qn_gguf_kv_at(file, i + 3);
        assert_true(a->type == b->type && a->element_type == b->element_type && a->count == b->count &&
                    a->bytes == b->bytes);
        assert_true(a->key.length == b->key.length && memcmp(a->key.data, b->key.data, a->key.length) == 0);
        assert_memory_equal(a->data, b->data, a->bytes);
    }
    uint32_t u;
    float f;
    qn_string s;
    assert_ok(qn_gguf_get_u32(file, "added.u32", true, &u));
    assert_ok(qn_gguf_get_f32(file, "added.f32", true, &f));
    assert_ok(qn_gguf_get_string(file, "added.text", true, &s));
    assert_true(u == 123456 && f == -0.125f && qn_string_equals(s, "hello"));
    const qn_gguf_tensor *t = qn_gguf_find_tensor(file, "matrix");
    assert_true(t->bytes == 1000 && t->n_dims == 2 && t->dims[0] == 25 && t->dims[1] == 10 && t->type == QN_TYPE_F32);
    assert_memory_equal(t->data, bytes, 1000);
    assert_memory_equal(qn_gguf_find_tensor(file, "odd")->data, bytes, 50);
    qn_gguf_close(file);
    qn_gguf_close(source);
    unlink(path);
    free(copy);
}

TEST(writing_leaves_the_target_alone)
{
    char path[512], link[512];
    snprintf(path, sizeof path, "%s", in_folder("target"));
    snprintf(link, sizeof link, "%s", in_folder("link"));
    write_text(path, "precious");
    assert_int_equal(chmod(path, 0640), 0);

    qn_gguf_writer *w;
    assert_ok(qn_gguf_writer_create(path, &w));
    assert_ok(qn_gguf_writer_begin_data(w));
    qn_gguf_writer_free(w); /* without qn_gguf_writer_finish */
    assert_int_equal(files_in_folder(), 1);
    assert_file(path, "precious", 8);

    /* Through a symbolic link, which is kept; so are the permissions. */
    assert_int_equal(symlink("target", link), 0);
    assert_ok(qn_gguf_writer_create(link, &w));
    assert_ok(qn_gguf_writer_begin_data(w));
    assert_ok(qn_gguf_writer_finish(w));
    qn_gguf_writer_free(w);
    struct stat st;
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    assert_ok(qn_gguf_open(path, &file));
    qn_gguf_close(file);
    unlink(link);
    unlink(path);

    assert_int_equal(qn_gguf_writer_create(folder, &w), QN_ERR_IO);
    assert_int_equal(qn_gguf_writer_create("/dev/null", &w), QN_ERR_IO);
    assert_int_equal(qn_gguf_writer_create(in_folder("absent/file"), &w), QN_ERR_IO);
    assert_int_equal(qn_gguf_writer_create("", &w), QN_ERR_IO);
    assert_null(w);
    assert_int_equal(files_in_folder(), 0);
}

TEST_GROUP(make_folder, remove_folder)
