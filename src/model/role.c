/* Roles of files. Architectures of drafters are llama.cpp's (dflash, eagle3, gemma4-assistant), and those of older
 * branches ("dflash-draft"). */
#include "model/role.h"

#include "base/strings.h"
#include "model/keys.h"
#include "model/weights.h"

#include <stdio.h>
#include <string.h>

static bool contains(qn_string s, const char *word)
{
    return s.length > 0 && qn_memmem(s.data, s.length, word, strlen(word)) != NULL;
}

static bool is_text(const qn_gguf *file, const char *key, const char *text)
{
    const qn_gguf_kv *kv = qn_gguf_find(file, key);
    return kv && kv->type == QN_GGUF_STRING && qn_string_equals(kv->string, text);
}

static bool is_drafter_architecture(qn_string architecture)
{
    static const char *const words[] = { "dflash", "dspark", "eagle", "-assistant", "-draft" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (contains(architecture, words[i]))
            return true;
    return false;
}

static qn_string architecture_of(const qn_gguf *file)
{
    const qn_gguf_kv *kv = qn_gguf_find(file, "general.architecture");
    return kv && kv->type == QN_GGUF_STRING ? kv->string : (qn_string){ "", 0 };
}

/* Whether the tensors of blocks are those of one block, for multi-token prediction. */
static bool has_one_block(const qn_gguf *file)
{
    uint32_t block = UINT32_MAX;
    bool is_mtp = false;
    for (size_t i = 0; i < qn_gguf_n_tensors(file); i++) {
        const qn_string name = qn_gguf_tensor_at(file, i)->name;
        const uint32_t n = qn_weights_block(name);
        if (n == UINT32_MAX)
            continue;
        if (block != UINT32_MAX && n != block)
            return false;
        block = n;
        is_mtp = is_mtp || contains(name, ".nextn.");
    }
    return is_mtp;
}

bool qn_file_is_mtp_block(const qn_gguf *file)
{
    const qn_string architecture = architecture_of(file);
    char name[64];
    uint32_t n_mtp = 0, n_files = 0;
    snprintf(name, sizeof name, "%.*s", (int)(architecture.length < 40 ? architecture.length : 40), architecture.data);
    if (qn_key_u32(file, name, "nextn_predict_layers", false, &n_mtp) ||
        qn_gguf_get_u32(file, "split.count", false, &n_files) || (n_files > 1 && qn_gguf_n_files(file) == 1))
        return false;
    return has_one_block(file) ||
           (n_mtp && qn_gguf_n_tensors(file) > 0 && !qn_gguf_find_tensor(file, "blk.0.attn_norm.weight"));
}

qn_file_role qn_file_role_of(const qn_gguf *file)
{
    const qn_string architecture = architecture_of(file);
    if (qn_string_equals(architecture, "clip") || is_text(file, "general.type", "mmproj"))
        return QN_FILE_PROJECTOR;
    if (is_text(file, "general.type", "imatrix"))
        return QN_FILE_IMATRIX;
    return is_drafter_architecture(architecture) || qn_file_is_mtp_block(file) ? QN_FILE_DRAFTER : QN_FILE_MODEL;
}

bool qn_file_role_read(const char *path, qn_file_role *role)
{
    qn_gguf *file;
    if (qn_gguf_open_alone(path, &file))
        return false;
    *role = qn_file_role_of(file);
    qn_gguf_close(file);
    return true;
}
