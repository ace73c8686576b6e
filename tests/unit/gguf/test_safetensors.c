/* The reader of safetensors files: what it accepts, and damaged headers, each with the text of its error. And JSON:
 * depth, repeated keys, large integers. */
#include "helper_assert.h"
#include "helper_files.h"

#include "convert/checkpoint.h"
#include "gguf/json.h"
#include "gguf/safetensors.h"

#include <errno.h>
#include <unistd.h>

static char path[] = "/tmp/quern-test-safetensors-XXXXXX";

static void write_header(const char *header, uint64_t header_bytes, size_t data_bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(&header_bytes, 8, 1, file), 1);
    fputs(header, file);
    for (size_t i = 0; i < data_bytes; i++)
        fputc((int)(i & 0xff), file);
    assert_int_equal(fclose(file), 0);
}

TEST(test_reading)
{
    const char *header =
        "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[6,14]},"
        "\"a\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,6]},"
        "\"empty\":{\"dtype\":\"I64\",\"shape\":[0,5],\"data_offsets\":[14,14]},"
        "\"scalar\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[14,15]}}   ";
    write_header(header, strlen(header), 15);
    qn_safetensors *file;
    assert_ok(qn_safetensors_open(path, &file));
    assert_int_equal(qn_safetensors_count(file), 4);
    assert_string_equal(qn_safetensors_path(file), path);
    const qn_safetensor *a = qn_safetensors_at(file, 0), *b = qn_safetensors_at(file, 1);
    assert_string_equal(a->name, "a");
    assert_string_equal(a->dtype, "BF16");
    assert_int_equal(b->n_dims, 2);
    assert_int_equal(b->dims[0], 2);
    assert_int_equal(b->bytes, 8);
    uint8_t bytes[4];
    assert_int_equal(qn_safetensors_read(file, b, 2, bytes, 4), 0);
    assert_int_equal(bytes[0], 8);
    assert_int_equal(bytes[3], 11);
    qn_safetensors_prefetch(file, b, 0, 100);
    qn_safetensors_prefetch(file, b, 9, 1);
    assert_int_equal(truncate(path, (off_t)(8 + strlen(header) + 9)), 0);
    assert_int_equal(qn_safetensors_read(file, b, 2, bytes, 4), ENODATA);
    qn_safetensors_close(file);
}

#define TENSOR(name, dtype, shape, offsets)                                                                            \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

TEST(test_damage)
{
    static const struct {
        const char *header, *text;
        size_t data_bytes;
    } cases[] = {
        { "", "", 0 },
        { "[]", "not an object", 0 },
        { "{", "line 1", 0 },
        { "{} x", "line 1", 0 },
        { "{}", "the tensors take 0 bytes, the file has 3", 3 },
        { "{" TENSOR("a", "F32", "[2]", "[0,8]") "}", "ends at byte 8 of 7", 7 },
        { "{" TENSOR("a", "F32", "[2]", "[0,8]") "}", "take 8 bytes, the file has 9", 9 },
        { "{" TENSOR("a", "F32", "[2]", "[0,8]") "," TENSOR("a", "F32", "[2]", "[8,16]") "}", "a key twice", 16 },
        { "{" TENSOR("a", "F32", "[2]", "[0,8]") "," TENSOR("b", "F32", "[2]", "[4,12]") "}", "overlap", 12 },
        { "{" TENSOR("a", "F32", "[2]", "[0,8]") "," TENSOR("b", "F32", "[2]", "[9,17]") "}", "a gap", 17 },
        { "{" TENSOR("a", "F32", "[2]", "[1,9]") "}", "a gap", 9 },
        { "{" TENSOR("a", "F32", "[2]", "[0,4]") "}", "shape takes 8 bytes, data_offsets 4", 4 },
        { "{" TENSOR("a", "F33", "[2]", "[0,8]") "}", "unknown dtype 'F33'", 8 },
        { "{" TENSOR("a", "F32", "[-2]", "[0,8]") "}", "dimension 0 is not", 8 },
        { "{" TENSOR("a", "F32", "[2.0]", "[0,8]") "}", "dimension 0 is not", 8 },
        { "{" TENSOR("a", "F32", "2", "[0,8]") "}", "not an array", 8 },
        { "{" TENSOR("a", "F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", "not an array", 8 },
        { "{" TENSOR("a", "F32", "[4294967296,4294967296]", "[0,0]") "}", "overflows", 0 },
        { "{" TENSOR("a", "F32", "[9223372036854775807,2,2]", "[0,0]") "}", "overflows", 0 },
        { "{" TENSOR("a", "F32", "[99999999999999999999]", "[0,8]") "}", "not a non-negative integer", 8 },
        { "{" TENSOR("a", "F32", "[2]", "[8,0]") "}", "ascending", 8 },
        { "{" TENSOR("a", "F32", "[2]", "[-8,0]") "}", "ascending", 8 },
        { "{" TENSOR("a", "F32", "[2]", "[0]") "}", "ascending", 8 },
        { "{\"a\":1}", "not an object", 0 },
        { "{\"a\":{}}", "no dtype", 0 },
        { "{\"a\\u0000\":{}}", "line 1", 0 },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("%s", cases[i].header);
        qn_safetensors *file;
        write_header(cases[i].header, strlen(cases[i].header), cases[i].data_bytes);
        assert_int_equal(qn_safetensors_open(path, &file), QN_ERR_FORMAT);
        assert_null(file);
        assert_text(cases[i].text);
    }
}

TEST(test_lengths)
{
    static const uint64_t lengths[] = {
        3, 100, QN_SAFETENSORS_MAX_HEADER + 1ull, UINT64_MAX, UINT64_MAX - 7, 1ull << 63
    };
    qn_safetensors *file;
    for (size_t i = 0; i < COUNT(lengths); i++) {
        label("header of %llu bytes", (unsigned long long)lengths[i]);
        write_header("{}", lengths[i], 0);
        assert_fails(qn_safetensors_open(path, &file), QN_ERR_FORMAT, "a header of");
    }
    write_text(path, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n");
    assert_fails(qn_safetensors_open(path, &file), QN_ERR_FORMAT, "is a Git LFS pointer");
    assert_int_equal(truncate(path, 7), 0);
    assert_fails(qn_safetensors_open(path, &file), QN_ERR_FORMAT, "has 7 bytes");
    assert_int_equal(qn_safetensors_open("/tmp", &file), QN_ERR_IO);
    assert_int_equal(qn_safetensors_open("/no/such/file", &file), QN_ERR_IO);
}

TEST(test_json)
{
    json_t *json;
    char text[512] = "";
    for (int depth = QN_JSON_MAX_DEPTH; depth <= QN_JSON_MAX_DEPTH + 1; depth++) {
        char *at = text + sprintf(text, "{\"[[[[\\\"{{\":");
        memset(at, '[', (size_t)depth - 1);
        memset(at + depth - 1, ']', (size_t)depth - 1);
        strcpy(at + 2 * (depth - 1), "}");
        const qn_status status = qn_json_parse("text", text, strlen(text), &json);
        assert_int_equal(status, depth > QN_JSON_MAX_DEPTH ? QN_ERR_FORMAT : QN_OK);
        json_decref(json);
    }
    assert_text("nested more than 64 deep");
    assert_fails(qn_json_parse("text", "{\"a\":{\"b\":1,\"b\":2}}", 19, &json), QN_ERR_FORMAT, "text: line 1");
    write_text(path, "{\"model_max_length\": 1000000000000000019884624838656}");
    assert_ok(qn_json_read(path, 100, true, &json));
    assert_true(json_is_real(json_object_get(json, "model_max_length")));
    json_decref(json);
    assert_fails(qn_json_read(path, 10, true, &json), QN_ERR_FORMAT, "at most 10");
    assert_ok(qn_json_read("/no/such/file", 10, false, &json));
    assert_null(json);
    assert_int_equal(qn_json_read("/no/such/file", 10, true, &json), QN_ERR_IO);
}

/* Values of many times the size of their text, which a small file can have. */
TEST(test_memory)
{
    enum { VALUES = 1000000 };
    static const char *const values[] = { "{},", "[],", "0,", "\"\"," }, begin[] = "{\"x\":[";
    for (size_t v = 0; v < COUNT(values); v++) {
        label("%s", values[v]);
        const size_t n = strlen(values[v]), is_refused = v != 2;
        char *text = malloc(sizeof begin + VALUES * n + 8), *at = text + sprintf(text, begin);
        assert_non_null(text);
        for (size_t i = 0; i < VALUES; i++, at += n)
            memcpy(at, values[v], n);
        at += sprintf(at - 1, "]}") - 1;
        json_t *json;
        assert_int_equal(qn_json_parse("text", text, (size_t)(at - text), &json), is_refused ? QN_ERR_FORMAT : QN_OK);
        if (is_refused)
            assert_text("take more memory");
        json_decref(json);
        free(text);
    }
    json_t *json;
    assert_fails(qn_json_parse("text", "{\"a\":\"b\\u0000\"}", 15, &json), QN_ERR_FORMAT, "U+0000");
}

static void write_padded(const char *folder, const char *name, size_t length)
{
    char file_name[300];
    snprintf(file_name, sizeof file_name, "%s/%s.safetensors", folder, name);
    FILE *file = fopen(file_name, "wb");
    assert_non_null(file);
    for (int i = 0; i < 8; i++)
        fputc((int)(length >> 8 * i & 255), file);
    const int n = fprintf(file, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", name);
    fprintf(file, "%*s1234", (int)length - n, "");
    fclose(file);
}

/* The headers of all files of a checkpoint are in memory at once. */
TEST(test_many_headers)
{
    char folder[] = "/tmp/quern-headers.XXXXXX", index[64];
    assert_non_null(mkdtemp(folder));
    snprintf(index, sizeof index, "%s/model.safetensors.index.json", folder);
    write_text(index, "{\"weight_map\":{\"a\":\"a.safetensors\",\"b\":\"b.safetensors\"}}");
    for (size_t more = 0; more < 2; more++) {
        qn_checkpoint checkpoint = { 0 };
        write_padded(folder, "a", QN_SAFETENSORS_MAX_HEADER / 2);
        write_padded(folder, "b", QN_SAFETENSORS_MAX_HEADER / 2 + more);
        assert_int_equal(qn_checkpoint_open(&checkpoint, folder), more ? QN_ERR_FORMAT : QN_OK);
        qn_checkpoint_close(&checkpoint);
    }
    assert_text("headers of the checkpoint");
    assert_int_equal(remove_tree(folder), 0);
}

int main(void)
{
    const int fd = mkstemp(path);
    if (fd < 0)
        return 1;
    close(fd);
    const int failed = run_all_tests();
    unlink(path);
    return failed;
}
