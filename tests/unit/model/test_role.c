/* qn_file_role_of: models, drafters of all kinds, projectors, and files that say little. */
#include "helper_image.h"

#include "model/role.h"

#include <unistd.h>

struct file {
    const char *name;
    const char *architecture, *type; /* NULL: no key */
    int32_t n_mtp, n_files;          /* -1: no key */
    const char *tensors[2];
    qn_file_role role;
};

static void put_string_key(const char *key, const char *text)
{
    put_key(key, QN_GGUF_STRING);
    put_text(text);
}

static void put_file(const struct file *f)
{
    char key[64];
    const size_t n = f->tensors[1] ? 2 : f->tensors[0] ? 1 : 0;
    put_header(3, n, (size_t)(f->architecture != NULL) + (f->type != NULL) + (f->n_mtp >= 0) + (f->n_files >= 0));
    if (f->architecture)
        put_string_key("general.architecture", f->architecture);
    if (f->type)
        put_string_key("general.type", f->type);
    if (f->n_mtp >= 0) {
        snprintf(key, sizeof key, "%s.nextn_predict_layers", f->architecture);
        put_key(key, QN_GGUF_U32);
        put32((uint32_t)f->n_mtp);
    }
    if (f->n_files >= 0) {
        put_key("split.count", QN_GGUF_U32);
        put32((uint32_t)f->n_files);
    }
    for (size_t i = 0; i < n; i++)
        put_tensor(f->tensors[i], QN_TYPE_F32, i * 32, 1, 8, 1, 1, 1);
    put_data(32, 32 * n);
}

static const struct file files[] = {
    { "a model", "qwen35", "model", -1, -1, { "blk.0.attn_norm.weight" }, QN_FILE_MODEL },
    { "a model with a block",
      "qwen35",
      NULL,
      1,
      -1,
      { "blk.0.attn_norm.weight", "blk.1.nextn.enorm.weight" },
      QN_FILE_MODEL },
    { "a model that counts no blocks", "qwen35", NULL, 0, -1, { "token_embd.weight" }, QN_FILE_MODEL },
    { "a vocabulary", "qwen35", NULL, -1, -1, { NULL }, QN_FILE_MODEL },
    { "an unknown architecture", "later", NULL, -1, -1, { "a" }, QN_FILE_MODEL },
    { "no architecture", NULL, NULL, -1, -1, { "a" }, QN_FILE_MODEL },
    { "a block alone", "qwen35", NULL, 1, -1, { "token_embd.weight", "blk.64.nextn.enorm.weight" }, QN_FILE_DRAFTER },
    { "a block alone of another architecture",
      "qwen3next",
      NULL,
      1,
      -1,
      { "blk.48.nextn.enorm.weight" },
      QN_FILE_DRAFTER },
    { "a part of a split model", "qwen35", NULL, 1, 3, { "blk.40.attn_norm.weight" }, QN_FILE_MODEL },
    { "dflash", "dflash", "model", -1, -1, { "blk.0.attn_norm.weight" }, QN_FILE_DRAFTER },
    { "dflash of an older branch", "dflash-draft", NULL, -1, -1, { NULL }, QN_FILE_DRAFTER },
    { "eagle3", "eagle3", NULL, -1, -1, { "blk.0.attn_norm.weight" }, QN_FILE_DRAFTER },
    { "an assistant", "gemma4-assistant", NULL, -1, -1, { NULL }, QN_FILE_DRAFTER },
    { "a projector", "clip", NULL, -1, -1, { NULL }, QN_FILE_PROJECTOR },
    { "a projector by its type", "qwen3vl", "mmproj", -1, -1, { NULL }, QN_FILE_PROJECTOR },
    { "an importance matrix", "", "imatrix", -1, -1, { NULL }, QN_FILE_IMATRIX },
    { "a block that no key counts",
      "qwen35",
      NULL,
      -1,
      -1,
      { "token_embd.weight", "blk.64.nextn.enorm.weight" },
      QN_FILE_DRAFTER },
    { "a block with the number 0",
      "qwen35",
      NULL,
      1,
      -1,
      { "blk.0.attn_norm.weight", "blk.0.nextn.enorm.weight" },
      QN_FILE_DRAFTER },
    { "a block that is not for drafts", "qwen35", NULL, -1, -1, { "blk.3.attn_norm.weight" }, QN_FILE_MODEL },
};

TEST_EACH(roles, struct file, f, files)
{
    qn_gguf *file;
    uint8_t *data;
    put_file(f);
    assert_ok(open_image(&image, &file, &data));
    assert_int_equal(qn_file_role_of(file), f->role);
    qn_gguf_close(file);
    free(data);
}

TEST(files_that_cannot_be_opened)
{
    char path[] = "/tmp/quern-test-role-XXXXXX";
    qn_file_role role;
    const int fd = mkstemp(path);
    assert_int_equal(write(fd, "text", 4), 4);
    assert_false(qn_file_role_read(path, &role));
    assert_false(qn_file_role_read("/nonexistent", &role));
    put_file(&files[9]);
    assert_int_equal(pwrite(fd, image.data, image.size, 0), image.size);
    assert_true(qn_file_role_read(path, &role));
    assert_int_equal(role, files[9].role);
    close(fd);
    unlink(path);
}
