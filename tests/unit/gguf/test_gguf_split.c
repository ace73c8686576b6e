/* Split models: bit-identical to the single file, opened by any of their files. Missing, damaged and inconsistent files
 * are rejected, with a text that has the file, the value found and the value expected. With the arguments SOURCE PREFIX
 * N the program splits a model into N files, for the tests of the CLI. */
#include "helper_split.h"
#include "helper_create.h"
#include "helper_folder.h"

#include "quern/quern.h"

#include <sys/stat.h>
#include <unistd.h>

#define GOLDEN QN_SOURCE_DIR "/tests/golden/"

enum { MAX_PARTS = 4, N_IDS = 40 };

static char prefix[64];            /* of the split files */
static char paths[MAX_PARTS][128]; /* of the files of the current model */
static const qn_quantize_params forced = { .size = sizeof(qn_quantize_params), .force = true };

static int begin(void)
{
    const int failed = make_folder();
    snprintf(prefix, sizeof prefix, "%s/m", folder);
    return failed;
}

static qn_gguf *open_whole(const char *name)
{
    char file_path[4096];
    qn_gguf *whole;
    snprintf(file_path, sizeof file_path, "%s%s", GOLDEN, name);
    assert_ok(qn_gguf_open(file_path, &whole));
    return whole;
}

static void name_parts(size_t n)
{
    for (size_t i = 0; i < n; i++)
        part_path(paths[i], sizeof paths[i], prefix, i, n);
}

static void split(const char *name, size_t n, bool bare_first)
{
    struct part parts[MAX_PARTS];
    qn_gguf *whole = open_whole(name);
    plan_parts(whole, n, bare_first, parts);
    name_parts(n);
    for (size_t i = 0; i < n; i++)
        write_part(whole, &parts[i], paths[i]);
    qn_gguf_close(whole);
}

static void remove_parts(size_t n)
{
    for (size_t i = 0; i < n; i++)
        (void)remove(paths[i]);
}

/* ---- One model ---- */

static void assert_same_model(const qn_gguf *whole, const qn_gguf *joined)
{
    assert_int_equal(qn_gguf_n_tensors(joined), qn_gguf_n_tensors(whole));
    assert_int_equal(qn_gguf_n_kv(joined), qn_gguf_n_kv(whole) + 3);
    for (size_t i = 0; i < qn_gguf_n_tensors(whole); i++) {
        const qn_gguf_tensor *a = qn_gguf_tensor_at(whole, i), *b = qn_gguf_tensor_at(joined, i);
        assert_int_equal(a->name.length, b->name.length);
        assert_memory_equal(a->name.data, b->name.data, a->name.length);
        assert_int_equal(a->type, b->type);
        assert_memory_equal(a->dims, b->dims, sizeof a->dims);
        assert_int_equal(a->bytes, b->bytes);
        assert_memory_equal(a->data, b->data, a->bytes);
    }
}

/* Opening any of the files opens all as one model. */
TEST(one_file)
{
    static const char *const names[] = { "llama.f16.gguf", "qwen3.q2_0.gguf", "parrot.gguf" };
    for (size_t m = 0; m < COUNT(names); m++)
        for (size_t n = 2; n <= 3; n++)
            for (int bare_first = 0; bare_first < 2; bare_first++) {
                label("%s in %zu files%s", names[m], n, bare_first ? ", the first without tensors" : "");
                qn_gguf *whole = open_whole(names[m]), *joined;
                size_t bytes = 0;
                split(names[m], n, bare_first);
                for (size_t i = 0; i < n; i++) {
                    struct stat st;
                    assert_int_equal(stat(paths[i], &st), 0);
                    bytes += (size_t)st.st_size;
                }
                for (size_t i = 0; i < n; i++) {
                    label("opened at file %zu", i);
                    assert_ok(qn_gguf_open(paths[i], &joined));
                    assert_same_model(whole, joined);
                    assert_string_equal(qn_gguf_path(joined), paths[0]);
                    assert_int_equal(qn_gguf_n_files(joined), n);
                    assert_int_equal(qn_gguf_file_size(joined), bytes);
                    const size_t last = qn_gguf_n_tensors(joined) - 1;
                    assert_string_equal(qn_gguf_tensor_path(joined, qn_gguf_tensor_at(joined, last)), paths[n - 1]);
                    assert_string_equal(qn_gguf_tensor_path(joined, qn_gguf_tensor_at(joined, 0)), paths[bare_first]);
                    for (size_t t = 0; t < qn_gguf_n_tensors(joined); t++) {
                        const qn_gguf_tensor *tensor = qn_gguf_tensor_at(joined, t);
                        char name[128];
                        snprintf(name, sizeof name, "%.*s", (int)tensor->name.length, tensor->name.data);
                        assert_ptr_equal(qn_gguf_find_tensor(joined, name), tensor);
                        qn_gguf_drop_pages(joined, tensor); /* dropped pages of all maps are read again */
                    }
                    assert_same_model(whole, joined);
                    qn_gguf_close(joined);
                }
                assert_ok(qn_gguf_open_alone(paths[n - 1], &joined));
                assert_int_equal(qn_gguf_n_files(joined), 1);
                assert_in_range(qn_gguf_n_tensors(joined), 1, qn_gguf_n_tensors(whole) - !(n == 2 && bare_first));
                qn_gguf_close(joined);
                qn_gguf_close(whole);
                remove_parts(n);
            }
}

static float *logits_of(const char *file_path, qn_model **out, size_t *bytes)
{
    qn_token ids[N_IDS];
    assert_ok(qn_model_load(file_path, &CPU_MODEL(.n_threads = 2), out));
    const size_t n_vocab = qn_model_get_info(*out)->n_vocab;
    for (size_t i = 0; i < N_IDS; i++)
        ids[i] = (qn_token)(i * 61 % n_vocab);
    *bytes = N_IDS * n_vocab * sizeof(float);
    qn_session *session = create_session(*out, &SESSION_PARAMS(.n_ctx = 64));
    float *logits = malloc(*bytes);
    assert_non_null(logits);
    assert_ok(qn_session_eval(session, ids, N_IDS, QN_LOGITS_ALL, logits));
    qn_session_free(session);
    return logits;
}

/* Packed and plain weights, and rotated ones of type 42. A session saved with the single file is restored with the
 * split model. */
TEST(same_logits)
{
    static const char *const names[] = { "qwen3.q1_0.gguf", "llama.f16.gguf", "qwen35-rotated.q2_0.gguf" };
    for (size_t m = 0; m < COUNT(names); m++)
        for (size_t n = 2; n <= 3; n++) {
            label("%s in %zu files", names[m], n);
            char file_path[4096];
            qn_model *whole, *joined;
            snprintf(file_path, sizeof file_path, "%s%s", GOLDEN, names[m]);
            split(names[m], n, n == 3);
            size_t bytes, found_bytes;
            float *expected = logits_of(file_path, &whole, &bytes),
                  *found = logits_of(paths[n - 1], &joined, &found_bytes);
            assert_int_equal(bytes, found_bytes);
            assert_memory_equal(expected, found, bytes);
            qn_session *session = create_session(whole, &SESSION_PARAMS(.n_ctx = 64));
            assert_ok(qn_session_save(session, other_path));
            qn_session_free(session);
            assert_ok(qn_session_restore(joined, other_path, NULL, &session));
            qn_session_free(session);
            unlink(other_path);
            const qn_model_info a = *qn_model_get_info(whole), b = *qn_model_get_info(joined);
            assert_int_equal(a.n_params, b.n_params);
            assert_int_equal(a.bytes_per_token, b.bytes_per_token);
            assert_in_range(b.file_bytes, a.file_bytes, a.file_bytes + n * 4096);
            qn_model_free(whole);
            qn_model_free(joined);
            free(expected);
            free(found);
            remove_parts(n);
        }
}

TEST(vocabulary_alone)
{
    split("parrot.gguf", 2, true);
    qn_model *model = create_model(paths[1], &CPU_MODEL(.vocab_only = true));
    assert_in_range(qn_model_get_info(model)->n_vocab, 1, 100000);
    qn_model_free(model);
    remove_parts(2);
}

/* split.count of 1, 0 or missing: a single file, independent of its name and the other keys. */
TEST(ordinary_files)
{
    qn_gguf *whole = open_whole("llama.f16.gguf"), *file;
    struct part part = { .no = 7, .count = ABSENT, .n_tensors = 9, .has_keys = true, .end = 2 };
    for (; part.count < 2; part.count++) {
        write_part(whole, &part, other_path);
        assert_ok(qn_gguf_open(other_path, &file));
        assert_int_equal(qn_gguf_n_tensors(file), 2);
        assert_int_equal(qn_gguf_n_files(file), 1);
        qn_gguf_close(file);
    }
    unlink(other_path);
    qn_gguf_close(whole);
}

/* ---- Type 42 ---- */

/* 32 blocks of 34 bytes, no padding: groups of 128, with the scale first or last. All zeros are valid as both. */
static void write_q2_part(const char *file_path, uint32_t no, const char *name, bool telling)
{
    put_header(3, 1, 3);
    put_number("split.no", no, QN_GGUF_U16);
    put_number("split.count", 2, QN_GGUF_U16);
    put_number("split.tensors.count", 2, QN_GGUF_I32);
    put_tensor(name, QN_TYPE_Q2_0, 0, 2, 128, 32, 0, 0);
    put_data(32, 32 * 34);
    if (telling)
        image.data[image.size - 1] = 0xa8; /* negative, if the scale is last */
    write_file(file_path, image.data, image.size);
}

/* The layout is determined once for all files: a file that is valid in two layouts gets that of the others. */
TEST(type_42)
{
    qn_gguf *file;
    for (uint32_t telling = 0; telling < 2; telling++) {
        label("told by file %u", (unsigned)telling);
        name_parts(2);
        write_q2_part(paths[0], 0, "first.weight", telling == 0);
        write_q2_part(paths[1], 1, "second.weight", telling == 1);
        assert_int_equal(qn_gguf_open_alone(paths[1 - telling], &file), QN_ERR_FORMAT);
        assert_null(file);
        assert_ok(qn_gguf_open(paths[0], &file));
        for (size_t i = 0; i < 2; i++) {
            assert_int_equal(qn_gguf_tensor_at(file, i)->type, QN_TYPE_PQ2_0);
            assert_int_equal(qn_gguf_tensor_at(file, i)->bytes, 32 * 34);
        }
        qn_gguf_close(file);
    }
    remove_parts(2);
}

/* ---- Quantising ---- */

TEST(quantised)
{
    char expected[80], found[80];
    qn_gguf *file;
    snprintf(expected, sizeof expected, "%s/expected", folder);
    snprintf(found, sizeof found, "%s/found", folder);
    for (size_t n = 2; n <= 3; n++) {
        label("%zu files", n);
        split("llama.f16.gguf", n, n == 3);
        assert_ok(qn_quantize_file(GOLDEN "llama.f16.gguf", expected, "q1_0", &forced));
        for (size_t i = 0; i < n; i++) {
            label("from file %zu", i);
            assert_ok(qn_quantize_file(paths[i], found, "q1_0", &forced));
            assert_same_files(expected, found);
        }
        assert_ok(qn_gguf_open(found, &file));
        assert_null(qn_gguf_find(file, "split.no"));
        assert_null(qn_gguf_find(file, "split.count"));
        assert_null(qn_gguf_find(file, "split.tensors.count"));
        qn_gguf_close(file);
        unlink(expected);
        unlink(found);
        remove_parts(n);
    }
}

/* The replaced file stays mapped until the output is complete. */
TEST(quantised_onto_a_part)
{
    char kept[80];
    qn_gguf *file;
    snprintf(kept, sizeof kept, "%s/kept", folder);
    assert_ok(qn_quantize_file(GOLDEN "llama.f16.gguf", other_path, "q1_0", &forced));
    for (size_t in = 0; in < 2; in++)
        for (size_t out = 0; out < 2; out++) {
            label("from file %zu onto file %zu", in, out);
            split("llama.f16.gguf", 2, false);
            assert_int_equal(link(paths[1 - out], kept), 0);
            assert_ok(qn_quantize_file(paths[in], paths[out], "q1_0", &forced));
            assert_same_files(other_path, paths[out]);
            assert_same_files(kept, paths[1 - out]);
            assert_ok(qn_gguf_open(paths[out], &file)); /* a single file, in spite of its name */
            qn_gguf_close(file);
            assert_fails(qn_gguf_open(paths[1 - out], &file), QN_ERR_FORMAT, paths[out]);
            unlink(kept);
        }
    unlink(other_path);
    remove_parts(2);
}

static bool stop(void *unused, size_t done, size_t total)
{
    (void)unused;
    return done < total / 2;
}

TEST(quantising_stopped)
{
    char kept[80];
    snprintf(kept, sizeof kept, "%s/kept", folder);
    split("llama.f16.gguf", 2, false);
    for (size_t out = 0; out < 2; out++) {
        assert_int_equal(link(paths[out], kept), 0);
        assert_int_equal(
            qn_quantize_file(paths[0], paths[out], "q1_0", &QUANTIZE_PARAMS(.force = true, .on_progress = stop)),
            QN_ERR_CANCELLED);
        struct stat before, after;
        assert_int_equal(stat(kept, &before), 0);
        assert_int_equal(stat(paths[out], &after), 0);
        assert_int_equal(before.st_ino, after.st_ino);
        unlink(kept);
    }
    remove_parts(2);
}

TEST(bad_weights)
{
    struct part parts[2];
    qn_gguf *whole = open_whole("llama.f16.gguf");
    qn_model *model;
    plan_parts(whole, 2, false, parts);
    parts[1].poisoned = "blk.1.attn_q.weight";
    name_parts(2);
    for (size_t i = 0; i < 2; i++)
        write_part(whole, &parts[i], paths[i]);
    assert_fails(qn_model_load(paths[0], &CPU_MODEL(), &model), QN_ERR_FORMAT, paths[1]);
    assert_fails(qn_quantize_file(paths[0], other_path, "q1_0", &forced), QN_ERR_FORMAT, paths[1]);
    qn_gguf_close(whole);
    remove_parts(2);
}

/* ---- Inconsistent files ---- */

/* Three valid files of llama.f16, with one fault. */
struct fault {
    const char *name;
    size_t opened; /* index of the file that is opened */
    qn_status status;
    size_t blamed; /* index of the file whose path the text begins with */
    const char *says;
    size_t file, number; /* a file, and which number it has a wrong value of: an offset in struct part */
    int64_t value;
    void (*spoil)(void); /* or another fault */
};

static qn_gguf *undivided;
static struct part planned[3];

static void rewrite(size_t i)
{
    write_part(undivided, &planned[i], paths[i]);
}

static void second_missing(void)
{
    unlink(paths[1]);
}
static void two_missing(void)
{
    unlink(paths[0]);
    unlink(paths[2]);
}
static void other_is_ordinary(void)
{
    planned[2].count = planned[2].n_tensors = ABSENT;
    rewrite(2);
}
static void other_disagrees_on_tensors(void)
{
    planned[2].n_tensors++;
    rewrite(2);
}
static void one_inode(void)
{
    for (size_t i = 1; i < 3; i++) {
        unlink(paths[i]);
        assert_int_equal(link(paths[0], paths[i]), 0);
    }
}
static void links_in_a_circle(void)
{
    unlink(paths[1]);
    assert_int_equal(symlink(paths[1], paths[1]), 0);
}
static void tensor_in_two(void)
{
    planned[2].begin--;
    planned[0].end--;
    rewrite(0);
    rewrite(2);
}
static void tensor_left_out(void)
{
    planned[2].end--;
    rewrite(2);
}
static void no_tensors_at_all(void)
{
    for (size_t i = 0; i < 3; i++) {
        planned[i].begin = planned[i].end = 0;
        rewrite(i);
    }
}
static void other_is_a_folder(void)
{
    unlink(paths[1]);
    assert_int_equal(mkdir(paths[1], 0700), 0);
}
static void other_is_empty(void)
{
    assert_int_equal(truncate(paths[1], 0), 0);
}
static void other_is_cut(void)
{
    struct stat st;
    assert_int_equal(stat(paths[2], &st), 0);
    assert_int_equal(truncate(paths[2], st.st_size - 100), 0);
}

#define NUMBER(index, field, with) .file = index, .number = offsetof(struct part, field), .value = with

static const struct fault faults[] = {
    { "one missing", 0, QN_ERR_IO, 0, "missing in its directory: m-00002-of-00003.gguf", .spoil = second_missing },
    { "two missing", 1, QN_ERR_IO, 1,
      "file 2 of 3 of a split model; missing in its directory: m-00001-of-00003.gguf, m-00003-of-00003.gguf",
      .spoil = two_missing },
    { "too many", 0, QN_ERR_FORMAT, 0, "key 'split.count' is 100000, expected at most 4096", NUMBER(0, count, 100000) },
    { "one too many", 0, QN_ERR_FORMAT, 0, "key 'split.count' is 4097, expected at most 4096",
      NUMBER(0, count, QN_GGUF_MAX_FILES + 1) },
    { "number beyond the count", 0, QN_ERR_FORMAT, 0, "key 'split.no' is 3, expected less than 'split.count', 3",
      NUMBER(0, no, 3) },
    { "number against the name", 0, QN_ERR_FORMAT, 0, "expected a name that ends in '-00002-of-00003.gguf'",
      NUMBER(0, no, 1) },
    { "count against the name", 0, QN_ERR_FORMAT, 0, "expected a name that ends in '-00001-of-00004.gguf'",
      NUMBER(0, count, 4) },
    { "negative number of tensors", 0, QN_ERR_FORMAT, 0, "key 'split.tensors.count' is -2", NUMBER(0, n_tensors, -2) },
    { "no number", 0, QN_ERR_FORMAT, 0, "key 'split.no' is missing", NUMBER(0, no, ABSENT) },
    { "no number of tensors", 0, QN_ERR_FORMAT, 2, "key 'split.tensors.count' is missing",
      NUMBER(2, n_tensors, ABSENT) },
    { "an ordinary file", 0, QN_ERR_FORMAT, 2, "key 'split.count' is missing", .spoil = other_is_ordinary },
    { "another count", 0, QN_ERR_FORMAT, 2, "key 'split.count' is 4, expected 3 by the file's name",
      NUMBER(2, count, 4) },
    { "another number of tensors", 0, QN_ERR_FORMAT, 2, "as in the model's other files",
      .spoil = other_disagrees_on_tensors },
    { "another one is the first", 1, QN_ERR_FORMAT, 0, "key 'split.no' is 2, expected 0 by the file's name",
      NUMBER(0, no, 2) },
    { "one inode", 0, QN_ERR_FORMAT, 1, "key 'split.no' is 0, expected 1 by the file's name", .spoil = one_inode },
    { "a link to itself", 2, QN_ERR_IO, 1, "cannot open", .spoil = links_in_a_circle },
    { "a tensor twice", 0, QN_ERR_FORMAT, 2, "' is also in ", .spoil = tensor_in_two },
    { "a tensor left out", 2, QN_ERR_FORMAT, 0, "the 3 files of this model have ", .spoil = tensor_left_out },
    { "no tensors", 1, QN_ERR_FORMAT, 0, "the 3 files of this model have 0 tensors, expected ",
      .spoil = no_tensors_at_all },
    { "a directory", 0, QN_ERR_IO, 1, "is a directory", .spoil = other_is_a_folder },
    { "an empty one", 2, QN_ERR_IO, 1, "is empty", .spoil = other_is_empty },
    { "a cut one", 0, QN_ERR_FORMAT, 2, "past the end of the data", .spoil = other_is_cut },
};

TEST(refused)
{
    undivided = open_whole("llama.f16.gguf");
    for (size_t i = 0; i < COUNT(faults); i++) {
        const struct fault *fault = &faults[i];
        qn_gguf *file = undivided;
        split("llama.f16.gguf", 3, false);
        plan_parts(undivided, 3, false, planned);
        if (fault->spoil) {
            fault->spoil();
        } else {
            memcpy((char *)&planned[fault->file] + fault->number, &fault->value, sizeof fault->value);
            rewrite(fault->file);
        }
        const qn_status status = qn_gguf_open(paths[fault->opened], &file);
        const char *text = qn_error_text(), *blamed = paths[fault->blamed];
        if (status != fault->status || file)
            fail_msg("%s: status %s, expected %s", fault->name, qn_status_name(status), qn_status_name(fault->status));
        if (strncmp(text, blamed, strlen(blamed)) != 0 || text[strlen(blamed)] != ':' || !strstr(text, fault->says))
            fail_msg("%s: '%s', expected '%s: ...%s'", fault->name, text, blamed, fault->says);
        remove_parts(3);
    }
    qn_gguf_close(undivided);
}

/* The maximum number of files, all but one missing: the text names some and counts the others. */
TEST(many_missing)
{
    qn_gguf *whole = open_whole("llama.f16.gguf"), *file;
    const struct part part = { .count = QN_GGUF_MAX_FILES, .n_tensors = 2, .has_keys = true, .end = 2 };
    part_path(paths[0], sizeof paths[0], prefix, 0, QN_GGUF_MAX_FILES);
    write_part(whole, &part, paths[0]);
    assert_int_equal(qn_gguf_open(paths[0], &file), QN_ERR_IO);
    const char *text = qn_error_text();
    assert_contains(text, "m-00002-of-04096.gguf, m-00003-of-04096.gguf, ");
    unsigned named = 0, more = 0;
    for (const char *at = text; (at = strstr(at, "m-0")); at++)
        named++;
    assert_contains(text, " and ");
    assert_int_equal(sscanf(strstr(text, " and "), " and %u more", &more), 1);
    assert_int_equal(named - 1 + more, QN_GGUF_MAX_FILES - 1); /* the first match is the path of the opened file */
    remove_parts(1);
    qn_gguf_close(whole);
}

TEST(names)
{
    static const char *const wrong[] = { "model.gguf", "m-00001-of-00002.GGUF", "m-0001-of-0002.gguf", "x",
                                         "m-00001-of-00003.gguf" };
    qn_gguf *whole = open_whole("llama.f16.gguf"), *file;
    const struct part part = { .count = 2, .n_tensors = 2, .has_keys = true, .end = 2 };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        char file_path[128];
        snprintf(file_path, sizeof file_path, "%s/%s", folder, wrong[i]);
        write_part(whole, &part, file_path);
        assert_fails(qn_gguf_open(file_path, &file), QN_ERR_FORMAT, "file 1 of 2 of a split model");
        assert_text("expected a name that ends in '-00001-of-00002.gguf'");
        unlink(file_path);
    }
    /* In the current directory, by a path without a slash. */
    char back[4096];
    assert_non_null(getcwd(back, sizeof back));
    split("llama.f16.gguf", 2, false);
    assert_int_equal(chdir(folder), 0);
    write_part(whole, &part, "x"); /* shorter than the suffix of split files */
    assert_int_equal(qn_gguf_open("x", &file), QN_ERR_FORMAT);
    unlink("x");
    assert_ok(qn_gguf_open("m-00002-of-00002.gguf", &file));
    assert_string_equal(qn_gguf_path(file), "m-00001-of-00002.gguf");
    qn_gguf_close(file);
    unlink("m-00001-of-00002.gguf");
    assert_fails(qn_gguf_open("m-00002-of-00002.gguf", &file), QN_ERR_IO,
                 "missing in its directory: m-00001-of-00002.gguf");
    assert_int_equal(chdir(back), 0);
    remove_parts(2);
    qn_gguf_close(whole);
}

/* The header of a later file, truncated at every byte, and with each byte changed: rejected or valid, without crash or
 * leak. */
TEST(later_part_damaged)
{
    qn_gguf *whole = open_whole("llama.f16.gguf"), *file;
    struct part parts[2];
    size_t size, at = 0;
    plan_parts(whole, 2, false, parts);
    parts[0].end = parts[1].begin = 2; /* few tensors, so that the files are small */
    parts[0].n_tensors = parts[1].n_tensors = 4;
    parts[1].end = 4;
    name_parts(2);
    write_part(whole, &parts[0], paths[0]);
    write_part(whole, &parts[1], paths[1]);
    uint8_t *bytes = read_file(paths[1], &size);
    assert_in_range(size, 300, SIZE_MAX);
    for (; at < 300; at++) {
        write_file(paths[1], bytes, at);
        assert_int_not_equal(qn_gguf_open(paths[at % 2], &file), QN_OK);
        assert_null(file);
    }
    for (at = 0; at < 300; at++) {
        bytes[at] ^= (uint8_t)(1u << at % 8);
        write_file(paths[1], bytes, size);
        bytes[at] ^= (uint8_t)(1u << at % 8);
        if (qn_gguf_open(paths[0], &file) == QN_OK)
            qn_gguf_close(file);
        else
            assert_null(file);
    }
    free(bytes);
    remove_parts(2);
    qn_gguf_close(whole);
}

static int write_split(const char *source, const char *to, size_t n)
{
    struct part parts[99];
    qn_gguf *whole;
    char file_path[4096];
    if (n < 1 || n > 99 || qn_gguf_open(source, &whole)) {
        fprintf(stderr, "usage: test_gguf_split SOURCE PREFIX N, N of 1 to 99: %s\n", qn_error_text());
        return 2;
    }
    plan_parts(whole, n, false, parts);
    for (size_t i = 0; i < n; i++) {
        part_path(file_path, sizeof file_path, to, i, n);
        write_part(whole, &parts[i], file_path);
    }
    qn_gguf_close(whole);
    return 0;
}

TEST_GROUP(begin, remove_folder)

int main(int argc, char **argv)
{
    if (argc == 4)
        return write_split(argv[1], argv[2], (size_t)atoi(argv[3]));
    return run_all_tests();
}
